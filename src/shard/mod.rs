//! (room shard)
