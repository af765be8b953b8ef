"""A publish's result is written by hand; it must say what pydantic would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay_core.messages.base import WireModel
from relay_core.messages.results import AdapterResult, PublishResult, Rejection

rejections = st.builds(Rejection, endpoint_hash=st.text(), reason=st.text())
adapter_results = st.builds(
    AdapterResult,
    adapter_id=st.text(),
    status=st.text(),
    error=st.none() | st.text(),
    duration_ms=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    st.builds(
        PublishResult,
        message_id=st.text(),
        delivered_to=st.integers(0, 100),
        rejected=st.none() | st.lists(rejections).map(tuple),
        mailbox_pressure=st.none() | st.dictionaries(st.text(), st.floats(0, 1)),
        adapter_results=st.none() | st.lists(adapter_results).map(tuple),
    )
)
def test_the_wire_form_is_pydantics(result: PublishResult) -> None:
    assert result.to_wire() == WireModel.to_wire(result)
    assert PublishResult.model_validate(result.to_wire()) == result
