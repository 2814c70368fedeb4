"""The part of XLA's HLO protobuf that we read and rewrite.

Field numbers are those of XLA's public `hlo.proto` and `xla_data.proto`; what is not
named here is kept as it is when a message is written again. Enums are declared int32,
which has the same wire form. `ModuleParts` and `ComputationParts` are the messages
`HloModuleProto` and `HloComputationProto` with their big lists left as bytes, so that a
large module is taken apart one instruction at a time.
"""

from __future__ import annotations

from typing import Any

from spmd._program.messages import message_classes

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "OpMetadata": {
        "op_type": (1, "string"),
        "op_name": (2, "string"),
        "source_file": (3, "string"),
        "source_line": (4, "int32"),
        "stack_frame_id": (15, "int32"),
    },
    "LayoutProto": {
        "minor_to_major": (1, "int64*"),
        "element_size_in_bits": (7, "int64"),
        "memory_space": (8, "int64"),
    },
    "ShapeProto": {
        "element_type": (2, "int32"),
        "dimensions": (3, "int64*"),
        "tuple_shapes": (4, "ShapeProto*"),
        "layout": (5, "LayoutProto"),
    },
    "LiteralProto": {  # whole numbers only; small types come packed as bytes
        "preds": (2, "bool*"),
        "u8s": (3, "bytes"),
        "s32s": (4, "int32*"),
        "s64s": (5, "int64*"),
        "u32s": (6, "uint32*"),
        "u64s": (7, "uint64*"),
        "s8s": (15, "bytes"),
        "u16s": (16, "bytes"),
        "s16s": (17, "bytes"),
    },
    "MapEntry": {"key": (1, "string"), "value": (2, "string")},
    "FrontendAttributes": {"map": (1, "MapEntry*")},
    "SliceDimensions": {
        "start": (1, "int64"),
        "limit": (2, "int64"),
        "stride": (3, "int64"),
    },
    "WindowDimension": {
        "size": (1, "int64"),
        "stride": (2, "int64"),
        "padding_low": (3, "int64"),
        "padding_high": (4, "int64"),
        "window_dilation": (5, "int64"),
        "base_dilation": (6, "int64"),
    },
    "Window": {"dimensions": (1, "WindowDimension*")},
    "ConvolutionDimensionNumbers": {
        "kernel_output_feature_dimension": (4, "int64"),
        "input_spatial_dimensions": (11, "int64*"),
        "output_spatial_dimensions": (12, "int64*"),
    },
    "DotDimensionNumbers": {
        "lhs_contracting_dimensions": (1, "int64*"),
        "rhs_contracting_dimensions": (2, "int64*"),
        "lhs_batch_dimensions": (3, "int64*"),
        "rhs_batch_dimensions": (4, "int64*"),
    },
    "SourceTarget": {"source": (1, "int64"), "target": (2, "int64")},
    "ReplicaGroup": {"replica_ids": (1, "int64*")},
    "IotaReplicaGroupList": {
        "num_replica_groups": (1, "int64"),
        "num_devices_per_group": (2, "int64"),
        "iota_reshape_dims": (3, "int64*"),
        "iota_transpose_perm": (4, "int32*"),
    },
    "CollectiveDeviceList": {
        "replica_groups": (1, "ReplicaGroup*"),
        "iota_replica_group_list": (2, "IotaReplicaGroupList"),  # before jaxlib 0.10
    },
    "MeshAxis": {"name": (1, "string"), "size": (2, "int64")},
    "IotaTransform": {
        "reshape_dims": (1, "int64*"),
        "transpose_perm": (2, "int64*"),
    },
    "MeshProto": {
        "axes": (1, "MeshAxis*"),
        "device_ids": (2, "int64*"),
        "iota_transform": (3, "IotaTransform"),
    },
    "SubAxis": {"pre_size": (1, "int64"), "size": (2, "int64")},
    "AxisRef": {"mesh_axis_index": (1, "int64"), "sub_axis_info": (2, "SubAxis")},
    "MeshAxesReplicaGroupList": {
        "mesh": (1, "MeshProto"),
        "axes": (2, "AxisRef*"),
    },
    "DimensionSharding": {"axes": (1, "AxisRef*"), "is_closed": (2, "bool")},
    "NamedSharding": {
        "mesh": (2, "MeshProto"),
        "dim_shardings": (3, "DimensionSharding*"),
        "replicated_axes": (4, "AxisRef*"),
        "unreduced_axes": (5, "AxisRef*"),
        "manual_axes": (7, "AxisRef*"),
    },
    "OpSharding": {
        "type": (1, "int32"),
        "tile_assignment_dimensions": (3, "int64*"),
        "tile_assignment_devices": (4, "int64*"),
        "tuple_shardings": (5, "OpSharding*"),
        "replicate_on_last_tile_dim": (6, "bool"),
        "last_tile_dims": (8, "int32*"),
        "iota_reshape_dims": (9, "int64*"),
        "iota_transpose_perm": (10, "int32*"),
        "named_sharding": (14, "NamedSharding"),
    },
    "Payload": {"value": (1, "bytes"), "id": (2, "int64")},
    "HloInstructionProto": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "shape": (3, "ShapeProto"),
        "metadata": (7, "OpMetadata"),
        "literal": (8, "LiteralProto"),
        "parameter_number": (9, "int64"),
        "fusion_kind": (11, "string"),
        "tuple_index": (13, "int64"),
        "dimensions": (14, "int64*"),
        "window": (15, "Window"),
        "convolution_dimension_numbers": (16, "ConvolutionDimensionNumbers"),
        "slice_dimensions": (17, "SliceDimensions*"),
        "dynamic_slice_sizes": (20, "int64*"),
        "channel_id": (26, "int64"),
        "custom_call_target": (28, "string"),
        "dot_dimension_numbers": (30, "DotDimensionNumbers"),
        "fft_type": (31, "int32"),
        "fft_length": (32, "int64*"),
        "id": (35, "int64"),
        "operand_ids": (36, "int64*"),
        "control_predecessor_ids": (37, "int64*"),
        "called_computation_ids": (38, "int64*"),
        "sharding": (40, "OpSharding"),
        "backend_config": (43, "bytes"),
        "replica_groups": (49, "ReplicaGroup*"),
        "feature_group_count": (50, "int64"),
        "source_target_pairs": (52, "SourceTarget*"),
        "comparison_direction": (63, "string"),
        "frontend_attributes": (68, "FrontendAttributes"),
        "use_global_device_ids": (71, "bool"),
        "async_execution_thread": (79, "string"),
        "collective_device_list": (87, "CollectiveDeviceList"),
        "iota_collective_device_list": (92, "IotaReplicaGroupList"),
        "mesh_axes_replica_group_list": (93, "MeshAxesReplicaGroupList"),
        "backend_config_payload": (99, "Payload"),
    },
    "HloComputationProto": {
        "name": (1, "string"),
        "instructions": (2, "HloInstructionProto*"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
    },
    "HloModuleProto": {
        "name": (1, "string"),
        "entry_computation_name": (2, "string"),
        "computations": (3, "HloComputationProto*"),
        "id": (5, "int64"),
        "entry_computation_id": (6, "int64"),
        "stack_frame_index": (17, "bytes"),
    },
    "FileLocation": {
        "file_name_id": (1, "int32"),
        "function_name_id": (2, "int32"),
        "line": (3, "int32"),
    },
    "StackFrame": {
        "file_location_id": (1, "int32"),
        "parent_frame_id": (2, "int32"),
    },
    "StackFrameIndex": {
        "file_names": (1, "string*"),
        "function_names": (2, "string*"),
        "file_locations": (3, "FileLocation*"),
        "stack_frames": (4, "StackFrame*"),
    },
    "InstructionSequence": {"instruction_ids": (1, "int64*")},
    "ScheduleEntry": {"key": (1, "int64"), "value": (2, "InstructionSequence")},
    "HloSchedule": {"sequences": (1, "ScheduleEntry*")},
    "AliasEntry": {
        "output_shape_index": (1, "int64*"),
        "parameter_number": (2, "int64"),
        "parameter_shape_index": (3, "int64*"),
        "kind": (4, "int32"),
    },
    "InputOutputAlias": {"entries": (1, "AliasEntry*")},
    "DonorEntry": {
        "parameter_number": (1, "int64"),
        "parameter_shape_index": (2, "int64*"),
    },
    "BufferDonor": {"entries": (1, "DonorEntry*")},
    "DeviceAssignment": {
        "replica_count": (1, "int32"),
        "computation_count": (2, "int32"),
    },
    "ComputationParts": {
        "name": (1, "string"),
        "instructions": (2, "bytes*"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
        "execution_thread": (8, "string"),
    },
    "ModuleParts": {
        "name": (1, "string"),
        "entry_computation_name": (2, "string"),
        "computations": (3, "bytes*"),
        "entry_computation_id": (6, "int64"),
        "schedule": (7, "HloSchedule"),
        "input_output_alias": (8, "InputOutputAlias"),
        "spmd_parameters_shardings": (14, "OpSharding*"),
        "device_assignment": (15, "DeviceAssignment"),
        "stack_frame_index": (17, "StackFrameIndex"),
        "buffer_donor": (18, "BufferDonor"),
        "frontend_attributes": (19, "FrontendAttributes"),
        "payloads": (22, "bytes*"),
    },
}
REPLICATED, OTHER = 0, 3  # OpSharding.Type

_message_class = message_classes("spmd_hlo", _MESSAGES)
HloModuleProto = _message_class("HloModuleProto")
"""Message class with the fields above; ``FromString(data)`` reads one."""
HloInstructionProto = _message_class("HloInstructionProto")
"""One instruction."""
ModuleParts = _message_class("ModuleParts")
"""`HloModuleProto` whose computations are bytes, each a `ComputationParts`."""
ComputationParts = _message_class("ComputationParts")
"""`HloComputationProto` whose instructions are bytes."""


def entry_computation(module: Any) -> Any:
    """The computation a module starts with.

    Args:
        module: An `HloModuleProto`.

    Returns:
        Its entry `HloComputationProto`.
    """
    return next(c for c in module.computations if c.id == module.entry_computation_id)
