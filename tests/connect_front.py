"""A proxy before a Spark Connect server that refuses the calls that serverless compute of Databricks refuses.

The proxy forwards each allowed request unchanged. To a refused request the proxy replies with an error in the
server's own format. Databricks' published list of limits names the refused calls: global temporary views,
cached rows, and all settings of a session but a few. The proxy replaces nothing of the server behind.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.code_pb2 import INTERNAL
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from pyspark.sql.connect.proto import base_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_SERVICE: Final = "/spark.connect.SparkConnectService/"
_STREAMS: Final = ("ExecutePlan", "ReattachExecute")
_SETTABLE: Final = frozenset(
    {
        "spark.databricks.execution.timeout", "spark.sql.ansi.enabled", "spark.sql.legacy.timeParserPolicy",
        "spark.sql.session.timeZone", "spark.sql.shuffle.partitions",
    }
)  # fmt: skip
_UNTOLD: Final = ("spark.master", "spark.driver.", "spark.executor.")
_GUARDED: Final = "CONFIG_NOT_AVAILABLE"
_UNSUPPORTED: Final = "NOT_SUPPORTED_WITH_SERVERLESS"


class Front(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A proxy on a free port of 127.0.0.1.

    Attributes:
        remote: value of `SPARK_REMOTE` that leads to the proxy.
        refused: condition and subject of each refusal so far.
    """

    def __init__(self, behind: str) -> None:
        self.refused: list[tuple[str, str]] = []
        self._channel = grpc.insecure_channel(behind.removeprefix("sc://"))
        self._server = grpc.server(ThreadPoolExecutor(32))
        self._server.add_generic_rpc_handlers((self,))
        self.remote = f"sc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call; requests and answers stay bytes."""
        name = handler_call_details.method
        method = name.removeprefix(_SERVICE)
        if method in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(self._many(name, method))
        if method == "AddArtifacts":
            return None
        return grpc.unary_unary_rpc_method_handler(self._one(name, method))

    def _one(self, name: str, method: str) -> Callable[[bytes, Any], bytes]:
        call = self._channel.unary_unary(name)

        def answer(request: bytes, context: Any) -> bytes:
            self._inspect(method, request, context)
            try:
                return bytes(call(request, metadata=_metadata(context)))
            except grpc.RpcError as error:
                _pass_on(error, context)
                raise

        return answer

    def _many(self, name: str, method: str) -> Callable[[bytes, Any], Iterator[bytes]]:
        call = self._channel.unary_stream(name)

        def answer(request: bytes, context: Any) -> Iterator[bytes]:
            self._inspect(method, request, context)
            try:
                yield from call(request, metadata=_metadata(context))
            except grpc.RpcError as error:
                _pass_on(error, context)

        return answer

    def _inspect(self, method: str, request: bytes, context: Any) -> None:
        """Abort the call if serverless compute refuses the request."""
        refusal = _refusal(method, request)
        if refusal is not None:
            self.refused.append(refusal)
            condition, subject = refusal
            info = ErrorInfo(reason="org.apache.spark.sql.AnalysisException", domain="org.apache.spark")
            info.metadata["errorClass"] = condition
            info.metadata["sqlState"] = "0A000"
            info.metadata["messageParameters"] = json.dumps({"operation": subject})
            info.metadata["classes"] = json.dumps(["org.apache.spark.sql.AnalysisException"])
            detail = AnyMessage()
            detail.Pack(info)
            message = f"[{condition}] {subject} is not supported on serverless compute. SQLSTATE: 0A000"
            context.abort_with_status(
                rpc_status.to_status(Status(code=INTERNAL, message=message, details=[detail]))
            )


def _refusal(method: str, request: bytes) -> tuple[str, str] | None:
    """Return condition and subject of a refusal; None if the request is allowed."""
    if method == "ExecutePlan":
        command = base_pb2.ExecutePlanRequest.FromString(request).plan.command
        kind = command.WhichOneof("command_type")
        if kind == "checkpoint_command":
            return _UNSUPPORTED, "CHECKPOINT"
        if kind == "create_dataframe_view" and command.create_dataframe_view.is_global:
            return _UNSUPPORTED, "GLOBAL TEMPORARY VIEW"
        text = command.sql_command.input.sql.query if kind == "sql_command" else ""
        text = (text or command.sql_command.sql).upper() if kind == "sql_command" else ""
        if "GLOBAL TEMP" in text or text.startswith(("CACHE ", "SET ")):
            return _UNSUPPORTED, text.partition(" ")[0]
    if method == "AnalyzePlan":
        analysis = base_pb2.AnalyzePlanRequest.FromString(request)
        if analysis.WhichOneof("analyze") == "persist":
            return _UNSUPPORTED, "PERSIST TABLE"
    if method == "Config":
        return _refused_setting(base_pb2.ConfigRequest.FromString(request).operation)
    return None


def _refused_setting(operation: Any) -> tuple[str, str] | None:
    kind = operation.WhichOneof("op_type")
    changed = [pair.key for pair in operation.set.pairs] + list(operation.unset.keys)
    keys = list(operation.get.keys) + [pair.key for pair in operation.get_with_default.pairs]
    wrong = [key for key in changed if key not in _SETTABLE]
    wrong += [key for key in keys if key.startswith(_UNTOLD)]
    return (_GUARDED, f"{kind} {wrong[0]}") if wrong else None


def _metadata(context: Any) -> list[tuple[str, str]]:
    return [(key, value) for key, value in context.invocation_metadata() if not key.startswith("user-agent")]


def _pass_on(error: Any, context: Any) -> None:
    """Reply with the error that the server raised."""
    context.set_trailing_metadata(error.trailing_metadata())
    context.abort(error.code(), error.details())
