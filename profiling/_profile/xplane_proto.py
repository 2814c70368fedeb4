"""The protobuf of a profile, `XSpace`, with its big lists left as bytes.

Field numbers are those of XLA's public `xplane.proto`. A space's planes and a plane's
lines are kept as bytes, so that a large profile is taken apart one line at a time. Most
of the bytes are stats of events, and most of these occur thousands of times: a reader
keeps them as bytes too (`LineParts`), and takes each apart once.
"""

from __future__ import annotations

from spmd._program.messages import message_classes

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "XStat": {
        "metadata_id": (1, "int64"),
        "double_value": (2, "double"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "string"),
        "bytes_value": (6, "bytes"),
        "ref_value": (7, "uint64"),
    },
    "XEvent": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "XStat*"),
        "num_occurrences": (5, "int64"),
    },
    "XLine": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "timestamp_ns": (3, "int64"),
        "events": (4, "XEvent*"),
        "duration_ps": (9, "int64"),
        "display_name": (11, "string"),
    },
    "EventParts": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "bytes*"),
    },
    "LineParts": {
        "name": (2, "string"),
        "timestamp_ns": (3, "int64"),
        "events": (4, "EventParts*"),
        "display_name": (11, "string"),
    },
    "XEventMetadata": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "display_name": (4, "string"),
        "stats": (5, "XStat*"),
    },
    "XStatMetadata": {"id": (1, "int64"), "name": (2, "string")},
    "EventMetadataEntry": {"key": (1, "int64"), "value": (2, "XEventMetadata")},
    "StatMetadataEntry": {"key": (1, "int64"), "value": (2, "XStatMetadata")},
    "PlaneParts": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "lines": (3, "bytes*"),
        "event_metadata": (4, "EventMetadataEntry*"),
        "stat_metadata": (5, "StatMetadataEntry*"),
        "stats": (6, "XStat*"),
    },
    "SpaceParts": {
        "planes": (1, "bytes*"),
        "errors": (2, "string*"),
        "warnings": (3, "string*"),
        "hostnames": (4, "string*"),
    },
}

_message_class = message_classes("spmd_xplane", _MESSAGES, one_of={"XStat": "value"})

SpaceParts = _message_class("SpaceParts")
"""`XSpace` whose planes are bytes, each a `PlaneParts`."""
PlaneParts = _message_class("PlaneParts")
"""`XPlane` whose lines are bytes, each an `XLine`."""
XLine = _message_class("XLine")
"""One line of a plane with its events."""
LineParts = _message_class("LineParts")
"""`XLine` whose events have their stats as bytes, each an `XStat`."""
XStat = _message_class("XStat")
"""Something said about a plane or an event."""
