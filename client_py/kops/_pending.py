"""Requests whose result is fetched later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ._errors import BadArgument
from ._link import SocketLink
from ._native_link import NativeLink
from ._ops import DEFAULT_TIMEOUT
from ._plans import Plan
from ._session import Call

if TYPE_CHECKING:
    from ._calls import Calls

Link: TypeAlias = SocketLink | NativeLink


class Pending:
    """A request that was sent and whose result is fetched later, by `submit`. Not to be shared by threads.

    One that is dropped without `result()` runs all the same; an ordinary array given as its `out` is then not filled.
    """

    def __init__(self, client: Calls, connection: Link, plan: Plan, call: Call) -> None:
        self._client = client
        self._connection = connection
        self._plan: Plan | None = plan
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """True when the reply is there, so that `result()` does not wait. Reads what has arrived."""
        if not self._call.done:
            self._connection.poll()
        return self._call.done

    def result(self, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
        """Waits for the reply: the result, or raises its error. After a `Timeout` here the request goes on, and
        `result()` may be called again."""
        if self._plan is not None:
            client, call = self._client, self._call
            self._connection.wait(call, client._timeout_of(timeout))
            plan, self._plan = self._plan, None
            try:
                plan.send(call.result) if call.error is None else plan.throw(call.take_error())
            except StopIteration as stop:
                self._value = stop.value
            except BaseException as error:
                self._error = error
            else:
                self._error = BadArgument("the request is not finished")
        if self._error is not None:
            raise self._error
        return self._value

    def cancel(self) -> bool:
        """Asks the daemon to drop the request, or to stop between repeats; `result()` then raises `Cancelled`. False
        when it had ended already."""
        return self._connection.cancel(self._call, self._client.timeout)
