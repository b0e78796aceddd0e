"""Writes Envoy's configuration and the descriptor set it transcodes by, from the compiled stubs.

`python deploy/envoy/render.py --out DIR --listen HOST:PORT --target auth=HOST:PORT …` writes `envoy.yaml` and
`descriptors.binpb` into DIR. A service without a target is not served. Without `--certificate` and `--key` the edge
speaks plain text: on loopback, or behind a load balancer that ends TLS.
"""

import argparse
import importlib
import json
import pkgutil
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.rpc import error_details_pb2, status_pb2
from teamlore.common.v1 import access_pb2

TEMPLATE = Path(__file__).with_name("envoy.yaml.in")
SERVICES = ("auth", "sync", "feed", "compliance", "index")
# Refusals travel as google.rpc.Status with details in Any; without these an error's JSON body is empty.
_ERRORS = (any_pb2.DESCRIPTOR, status_pb2.DESCRIPTOR, error_details_pb2.DESCRIPTOR)
_TYPES = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True)
class Address:
    """A host, by name or number, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads `host:port`. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host.strip("[]"), int(port))

    def envoy(self) -> dict[str, Any]:
        """The form that Envoy's configuration takes."""
        return {"socket_address": {"address": self.host, "port_value": self.port}}


@dataclass(frozen=True)
class Edge:
    """What the edge is told: where it listens and where each service is."""

    listen: Address
    admin: Address
    targets: Mapping[str, Address]
    descriptors: Path
    """The descriptor set, as Envoy will see it."""
    certificate: str = ""
    key: str = ""


def stubs(names: Sequence[str]) -> list[FileDescriptor]:
    """The file descriptors of all protos of the named services' packages."""
    found = []
    for name in names:
        package = importlib.import_module(f"teamlore.{name}.v1")
        files = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        modules = [importlib.import_module(f"{package.__name__}.{file}") for file in files if file.endswith("_pb2")]
        found += [module.DESCRIPTOR for module in modules]
    return found


def descriptor_set(names: Sequence[str]) -> descriptor_pb2.FileDescriptorSet:
    """The named services' protos and all they import, imports first."""
    found: dict[str, FileDescriptor] = {}

    def visit(file: FileDescriptor) -> None:
        if file.name not in found:
            for needed in file.dependencies:
                visit(needed)
            found[file.name] = file

    for file in (*_ERRORS, *stubs(names)):
        visit(file)
    result = descriptor_pb2.FileDescriptorSet()
    for file in found.values():
        file.CopyToProto(result.file.add())
    return result


def _internal(method: MethodDescriptor) -> bool:
    return bool(method.GetOptions().Extensions[access_pb2.access].internal)


def services_of(name: str) -> list[ServiceDescriptor]:
    """The services in a package."""
    return [service for file in stubs([name]) for service in file.services_by_name.values()]


def routes(names: Sequence[str]) -> list[dict[str, Any]]:
    """One route a service, by gRPC path: the transcoder has turned HTTP paths into these. Internal calls stay inside."""
    result: list[dict[str, Any]] = []
    for name in names:
        for service in services_of(name):
            for method in filter(_internal, service.methods):
                path = f"/{service.full_name}/{method.name}"
                result.append({"match": {"path": path}, "direct_response": {"status": 404}})
            result.append(
                {
                    "match": {"prefix": f"/{service.full_name}/"},
                    # Services bound their own calls, and a stream has no end: no timeout here. What never reached a
                    # service is safe to send again.
                    "route": {
                        "cluster": name,
                        "timeout": "0s",
                        "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 2},
                    },
                }
            )
    return result


def cluster(name: str, target: Address) -> dict[str, Any]:
    """The processes of one service. A headless Service's name gives all of them."""
    http2 = {"connection_keepalive": {"interval": "60s", "timeout": "10s"}}
    return {
        "name": name,
        "cluster_type": {
            "name": "envoy.cluster.dns",
            "typed_config": {"@type": f"{_TYPES}.clusters.dns.v3.DnsCluster", "dns_refresh_rate": "2s"},
        },
        "connect_timeout": "2s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": http2},
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": target.envoy()}}]}],
        },
    }


def transport_socket(edge: Edge) -> dict[str, Any]:
    """TLS where there is a certificate, plain text where there is none."""
    if not edge.certificate:
        plain = {"@type": f"{_TYPES}.transport_sockets.raw_buffer.v3.RawBuffer"}
        return {"name": "envoy.transport_sockets.raw_buffer", "typed_config": plain}
    certificate = {"certificate_chain": {"filename": edge.certificate}, "private_key": {"filename": edge.key}}
    tls = {
        "@type": f"{_TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificates": [certificate],
        },
    }
    return {"name": "envoy.transport_sockets.tls", "typed_config": tls}


def _lines(items: Sequence[Any]) -> str:
    """A list in JSON, one item a line, indented to stand anywhere in the template."""
    return "[\n" + ",\n".join(" " * 16 + json.dumps(item) for item in items) + "]"


def render(edge: Edge) -> str:
    """Envoy's configuration. JSON is YAML, so each filled-in part is JSON."""
    names = [name for name in SERVICES if name in edge.targets]
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        listen_host=json.dumps(edge.listen.host),
        listen_port=edge.listen.port,
        admin_host=json.dumps(edge.admin.host),
        admin_port=edge.admin.port,
        transport_socket=json.dumps(transport_socket(edge)),
        descriptors=json.dumps(str(edge.descriptors)),
        services=_lines([service.full_name for name in names for service in services_of(name)]),
        routes=_lines(routes(names)),
        clusters=_lines([cluster(name, edge.targets[name]) for name in names]),
    )


def main() -> None:
    """The command. Exit code 2 with a line on standard error for arguments that cannot be used."""
    parser = argparse.ArgumentParser(prog="render.py", description="Write Envoy's configuration and descriptor set.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write envoy.yaml and descriptors.binpb to")
    parser.add_argument("--listen", default="0.0.0.0:8443", help="host:port that callers reach (0.0.0.0:8443)")
    parser.add_argument("--admin", default="127.0.0.1:9901", help="host:port of Envoy's own pages (127.0.0.1:9901)")
    parser.add_argument("--target", action="append", default=[], metavar="NAME=HOST:PORT", help="where a service is")
    parser.add_argument("--certificate", default="", help="certificate chain, as Envoy will see the file")
    parser.add_argument("--key", default="", help="its private key, as Envoy will see the file")
    parser.add_argument("--mounted-at", type=Path, help="folder in which Envoy will see --out (the same)")
    arguments = parser.parse_args()
    try:
        pairs = [pair.partition("=") for pair in arguments.target]
        targets = {name: Address.parse(address) for name, _, address in pairs}
        listen, admin = Address.parse(arguments.listen), Address.parse(arguments.admin)
    except ValueError as error:
        parser.error(str(error))
    unknown = sorted(set(targets) - set(SERVICES))
    if unknown or not targets:
        parser.error(f"--target names one of {', '.join(SERVICES)}" + (f", not {', '.join(unknown)}" if unknown else ""))
    if bool(arguments.certificate) != bool(arguments.key):
        parser.error("--certificate and --key come together")
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    seen = arguments.mounted_at or out
    edge = Edge(listen, admin, targets, seen / "descriptors.binpb", arguments.certificate, arguments.key)
    (out / "descriptors.binpb").write_bytes(descriptor_set(tuple(targets)).SerializeToString())
    (out / "envoy.yaml").write_text(render(edge), encoding="utf-8")
    print(f"wrote {out / 'envoy.yaml'} and {out / 'descriptors.binpb'}", file=sys.stderr)


if __name__ == "__main__":
    main()
