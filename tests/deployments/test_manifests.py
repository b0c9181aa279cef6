"""The Kubernetes manifests are what Kubernetes' own schemas allow; nothing here runs a cluster."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import deployments

FOLDER = Path(deployments.__file__).resolve().parent
KUBERNETES = "1.33"

OBJECTS = [
    pytest.param(each, id=f"{name}-{each['kind']}")
    for name in ("kubernetes.yaml", "kubernetes-job.yaml")
    for each in yaml.safe_load_all((FOLDER / name).read_text())
]


@pytest.mark.parametrize("manifest", OBJECTS)
def test_a_manifest_follows_the_schema(manifest: dict[str, Any]) -> None:
    """Strict: a field that Kubernetes does not know is an error."""
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_check_can_fail() -> None:
    """A misspelt field is found."""
    manifest = yaml.safe_load((FOLDER / "kubernetes-job.yaml").read_text())
    manifest["spec"]["backofLimit"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_image_copies_what_is_there() -> None:
    """Every source of the Dockerfile's COPY lines exists."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    sources = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert sources
    assert not [source for source in sources if not (FOLDER.parent / source).exists()]
