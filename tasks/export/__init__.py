"""Files for trainers: options, masks, order, formats, manifest, conversations."""
