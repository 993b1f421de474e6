//! The parts of ONNX's protobuf messages that Relevo reads, under the names and numbers of the ONNX schema.
//!
//! `prost` does the decoding: the maintained protobuf library, whose derive needs neither `protoc` nor the schema. Fields
//! that are not declared here, weights among them, are skipped without a copy.

use prost::Message;

#[derive(Message)]
pub(crate) struct ModelProto {
    #[prost(string, tag = "2")]
    pub(crate) producer_name: String,
    #[prost(string, tag = "3")]
    pub(crate) producer_version: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "25")]
    pub(crate) functions: Vec<FunctionProto>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) metadata: Vec<EntryProto>,
}

#[derive(Message)]
pub(crate) struct FunctionProto {
    #[prost(message, repeated, tag = "7")]
    pub(crate) nodes: Vec<NodeProto>,
}

#[derive(Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializers: Vec<InitializerProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) inputs: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) outputs: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub(crate) sparse_initializers: Vec<SparseInitializerProto>,
}

#[derive(Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) outputs: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attributes: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
}

#[derive(Message)]
pub(crate) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int64, tag = "3")]
    pub(crate) int: i64,
    #[prost(message, optional, tag = "5")]
    pub(crate) tensor: Option<InitializerProto>,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(message, optional, tag = "6")]
    pub(crate) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) graphs: Vec<GraphProto>,
}

#[derive(Message)]
pub(crate) struct InitializerProto {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    /// Where the numbers lie in another file: its name, and a place in it.
    #[prost(message, repeated, tag = "13")]
    pub(crate) external_data: Vec<EntryProto>,
    /// 1 where it is so.
    #[prost(int32, tag = "14")]
    pub(crate) data_location: i32,
}

#[derive(Message)]
pub(crate) struct EntryProto {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Message)]
pub(crate) struct SparseInitializerProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) values: Option<InitializerProto>,
}

#[derive(Message)]
pub(crate) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) kind: Option<TypeProto>,
}

#[derive(Message)]
pub(crate) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor: Option<TensorTypeProto>,
}

#[derive(Message)]
pub(crate) struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub(crate) element_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<ShapeProto>,
}

#[derive(Message)]
pub(crate) struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dims: Vec<DimProto>,
}

#[derive(Message)]
pub(crate) struct DimProto {
    #[prost(int64, optional, tag = "1")]
    pub(crate) value: Option<i64>,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}
