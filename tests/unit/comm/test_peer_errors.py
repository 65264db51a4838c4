"""What an error of Horovod about a lost rank says to people."""

from __future__ import annotations

import pytest

from hvdtrain.comm.peer_failure import peer_failures
from hvdtrain.errors import PeerError


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[/build/horovod-0.28.1/third_party/gloo/gloo/transport/tcp/pair.cc:599] Connection closed by peer "
            "[127.0.0.1]:64159. This may be caused by other nodes.",
            "Connection closed by peer [127.0.0.1]:64159",
        ),
        (
            "Graph execution error:\n{{function_node __wrapped}} HorovodAllreduce failed: Horovod has been shut down. ",
            "HorovodAllreduce failed: Horovod has been shut down",
        ),
    ],
)
def test_it_names_no_source_of_libraries(text: str, told: str) -> None:
    with pytest.raises(PeerError) as caught, peer_failures():
        raise RuntimeError(text)
    assert f"Another rank has ended or stalled: {told}." in str(caught.value)
