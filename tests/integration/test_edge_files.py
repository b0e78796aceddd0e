"""What deploy/envoy/render.py writes, and what it refuses."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.integration.edge import ENVOY, render, targets


def test_envoy_accepts_the_configuration_with_tls_and_every_service(tmp_path: Path) -> None:
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    _self_signed(certificate, key)
    known = {name: f"{name}:8080" for name in ("auth", "sync", "feed", "compliance", "index")}
    where = ("--listen", "0.0.0.0:8443", "--admin", "127.0.0.1:9901")
    tls = ("--certificate", str(certificate), "--key", str(key))
    assert render(tmp_path, *where, *targets(known), *tls).returncode == 0
    words = [ENVOY, "--mode", "validate", "-l", "warn", "-c", str(tmp_path / "envoy.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "auth=here"], "'here' is not host:port"),
        (["--target", "entries=a:1"], "not entries"),
        ([], "--target names one of"),
        (["--target", "auth=a:1", "--key", "k.pem"], "come together"),
    ],
)
def test_arguments_that_cannot_be_used(tmp_path: Path, words: list[str], said: str) -> None:
    done = render(tmp_path, *words)
    assert done.returncode == 2 and said in done.stderr
    assert not list(tmp_path.iterdir())


def _self_signed(certificate: Path, key: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, *plain))
