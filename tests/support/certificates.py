"""An authority of a test's own and the certificates that it issues, made by the program openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONFIG = """
[ca]
default_ca = own
[own]
database = issued
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
_HERE = "DNS:localhost,IP:127.0.0.1"


def missing_openssl() -> str:
    """Why there is no such program, for a skip, or ""."""
    return "" if shutil.which("openssl") else "no program openssl: Debian's package openssl"


@dataclass(frozen=True)
class Certificate:
    """Files of PEM: a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Vouches for what it issues, and is trusted by whoever has its ``ca_file``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        (folder / "config").write_text(_CONFIG)
        (folder / "issued").touch()
        self._run(f"req -x509 {_KEY} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
        self.ca_file = folder / "ca.pem"

    def server_options(self, here: Certificate) -> list[str]:
        """Of a Valkey or Redis server that shows a certificate and asks clients for none."""
        files = {"cert": here.certificate, "key": here.key, "ca-cert": self.ca_file}
        options = [
            word for name, file in files.items() for word in (f"--tls-{name}-file", str(file))
        ]
        return [*options, "--tls-auth-clients", "no"]

    def _run(self, arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments.split()],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def issue(
        self, name: str, *, names: str = _HERE, years: str = "20200101 20991231"
    ) -> Certificate:
        """A certificate for these names, good between two days."""
        first, last = years.split()
        self._run(
            f"req -new {_KEY} -subj /CN={name} -addext subjectAltName={names} "
            f"-keyout {name}.key -out {name}.csr"
        )
        self._run(
            "ca -batch -notext -config config -cert ca.pem -keyfile ca.key -outdir . "
            f"-startdate {first}000000Z -enddate {last}000000Z -in {name}.csr -out {name}.pem"
        )
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
