"""One Prefect flow per file: no classes, no IO."""
