//! What the machine offers a data plane, and the plan that follows: which shards, on which cores, with which memory.
//!
//! Owns nothing. [`machine`] reads `/sys` and `/proc` below a root that is a parameter, so that tests build machines of files; the plan is
//! a function of what was read. Never pins anything itself. Invariants of a plan: at least one shard; a core carries at most one pinned
//! shard; shards of one node are neighbours in the list, and within a node every core has a shard before a second thread of one does.

pub mod list;

pub mod machine;

pub mod network;

use std::fmt;

use crate::base::units::ShardId;
pub use list::CpuList;
pub use machine::{Machine, Node};

/// What the operator asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub shards: Option<usize>,
    pub cpus: Option<CpuList>,
    pub numa: Numa,
    /// `None` pins unless another tenant is likely to share the cores: see [`plan`].
    pub pin: Option<bool>,
}

/// `--numa off|auto|N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Nodes play no part in the choice; a listed set that spans them is refused, a found one warned of.
    #[default]
    Off,
    /// Spread over nodes knowingly, node by node.
    Auto,
    /// This node's cores only.
    Node(usize),
}

/// Where shards run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub places: Vec<Place>,
    pub warnings: Vec<PlanWarning>,
}

/// One shard's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub shard: ShardId,
    /// The core to pin to; `None` leaves the thread to the kernel, `within` these bounds.
    pub cpu: Option<usize>,
    /// Where it is not pinned: the cores it may use; `None` are all that the process may.
    pub within: Option<CpuList>,
    /// The memory node of all cores that it may run on.
    pub node: Option<usize>,
    /// The node that its memory is to come from; `None` where the machine has no two.
    pub memory: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("cpus: `{0}` is not a list of cores such as 0-3,8 (ids 0 to {max})", max = list::CPU_ID_MAX)]
    List(String),
    #[error("cpus: core {0} is not in the process's affinity mask")]
    OutsideMask(usize),
    #[error("cpus: the list spans memory nodes {0:?}; say --numa auto to spread over them")]
    SpansNodes(Vec<usize>),
    #[error("numa: node {0} has no core that this process may use")]
    NoSuchNode(usize),
    #[error("shards: {0} is outside 1 to {max}", max = SHARDS_MAX)]
    Shards(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanWarning {
    /// More shards than cores: none is pinned.
    Crowded { shards: usize, cpus: usize },
    /// More shards than the quota pays for: they will be throttled.
    OverQuota { shards: usize, quota_cpus: usize },
    /// A quota, not a cpuset, limits the process, so other tenants may be on the same cores.
    QuotaAndPins,
    /// The same, and pinning was left to us: threads float.
    QuotaSoUnpinned,
    /// The mask spans nodes and nobody asked for that.
    SpansNodes(Vec<usize>),
}

/// Chooses. Without a count, one shard a core, no more than the quota pays for. Under a quota without a list of
/// cores, pods that each pin to the lowest cores of one mask would all meet there, so threads float by default.
pub fn plan(machine: &Machine, ask: &Ask) -> Result<Plan, PlanError> {
    let mut warnings = Vec::new();
    let cpus = candidates(machine, ask, &mut warnings)?;
    let quota = machine.quota_cpus.filter(|quota| *quota < cpus.len());
    let shards = ask
        .shards
        .unwrap_or(cpus.len().min(quota.unwrap_or(usize::MAX)).min(SHARDS_MAX));
    if !(1..=SHARDS_MAX).contains(&shards) {
        return Err(PlanError::Shards(shards));
    }
    if let Some(quota_cpus) = machine.quota_cpus.filter(|quota| shards > *quota) {
        warnings.push(PlanWarning::OverQuota { shards, quota_cpus });
    }
    let crowded = shards > cpus.len();
    if crowded {
        warnings.push(PlanWarning::Crowded {
            shards,
            cpus: cpus.len(),
        });
    }
    let shared = quota.is_some() && ask.cpus.is_none();
    let pin = !crowded && ask.pin.unwrap_or(!shared);
    match (shared && !crowded, ask.pin) {
        (true, None) => warnings.push(PlanWarning::QuotaSoUnpinned),
        (true, Some(true)) => warnings.push(PlanWarning::QuotaAndPins),
        _ => {}
    }
    let bounded = ask.cpus.is_some() || ask.numa != Numa::Off;
    let places = (0..shards).map(|index| {
        let floor = if pin {
            &cpus[index..=index]
        } else {
            floor(machine, ask.numa, &cpus, (index, shards))
        };
        let node = common_node(machine, floor);
        Place {
            // SHARDS_MAX fits the id.
            shard: ShardId(index as u16),
            cpu: floor.first().copied().filter(|_| pin),
            within: CpuList::new(floor.to_vec())
                .filter(|floor| !pin && bounded && *floor != machine.cpus),
            node,
            memory: node.filter(|_| machine.nodes.len() > 1),
        }
    });
    Ok(Plan {
        places: places.collect(),
        warnings,
    })
}

/// Where a shard that is not pinned may run: spread over nodes, each has one of them, as many to a node as the node has of the cores.
fn floor<'a>(
    machine: &Machine,
    numa: Numa,
    cpus: &'a [usize],
    (index, shards): (usize, usize),
) -> &'a [usize] {
    if numa != Numa::Auto {
        return cpus;
    }
    // Below the length, as the index is below the shards.
    let own = machine.node_of(cpus[index * cpus.len() / shards]);
    let mut nodes = cpus.chunk_by(|a, b| machine.node_of(*a) == machine.node_of(*b));
    nodes
        .find(|node| machine.node_of(node[0]) == own)
        .unwrap_or(cpus)
}

fn common_node(machine: &Machine, cpus: &[usize]) -> Option<usize> {
    let node = machine.node_of(*cpus.first()?)?;
    let all = cpus.iter().all(|cpu| machine.node_of(*cpu) == Some(node));
    all.then_some(node)
}

/// The cores to use, node by node. Within a node the first threads of its cores come first: two threads of a core share what makes it
/// fast, and machines number them in either order.
fn candidates(
    machine: &Machine,
    ask: &Ask,
    warnings: &mut Vec<PlanWarning>,
) -> Result<Vec<usize>, PlanError> {
    let listed = ask.cpus.as_ref();
    let mut cpus = listed.unwrap_or(&machine.cpus).ids().to_vec();
    if let Some(cpu) = cpus.iter().find(|cpu| !machine.cpus.ids().contains(cpu)) {
        return Err(PlanError::OutsideMask(*cpu));
    }
    if let Numa::Node(node) = ask.numa {
        cpus.retain(|cpu| machine.node_of(*cpu) == Some(node));
        if cpus.is_empty() {
            return Err(PlanError::NoSuchNode(node));
        }
    }
    cpus.sort_by_key(|cpu| (machine.node_of(*cpu), *cpu));
    let rank = thread_ranks(machine, &cpus);
    cpus.sort_by_key(|cpu| (machine.node_of(*cpu), rank(*cpu), *cpu));
    let mut nodes: Vec<usize> = cpus
        .iter()
        .filter_map(|cpu| machine.node_of(*cpu))
        .collect();
    nodes.dedup();
    if nodes.len() > 1 && ask.numa == Numa::Off {
        if listed.is_some() {
            return Err(PlanError::SpansNodes(nodes));
        }
        warnings.push(PlanWarning::SpansNodes(nodes));
    }
    Ok(cpus)
}

/// How many threads of the same core come before this one in the list.
fn thread_ranks(machine: &Machine, cpus: &[usize]) -> impl Fn(usize) -> usize + use<> {
    let siblings = |cpu: usize| machine.cores.iter().find(|c| c.ids().contains(&cpu));
    let before = |cpu: usize| {
        let core = siblings(cpu).map_or(&[][..], CpuList::ids);
        let listed = core.iter().filter(|other| cpus.contains(other));
        listed.take_while(|other| **other != cpu).count()
    };
    let ranks: Vec<_> = cpus.iter().map(|cpu| (*cpu, before(*cpu))).collect();
    move |cpu| {
        let row = ranks.iter().find(|(known, _)| *known == cpu);
        row.map_or(0, |(_, rank)| *rank)
    }
}

impl Plan {
    /// The cores in words, shards in order: `0,2 of node 0, 1,3 of node 1`.
    pub fn cores(&self) -> String {
        let groups = self
            .places
            .chunk_by(|a, b| (a.node, &a.within) == (b.node, &b.within));
        let words = groups.map(|group| {
            let pinned = group.iter().filter_map(|place| place.cpu);
            let pinned: Vec<String> = pinned.map(|cpu| cpu.to_string()).collect();
            let cores = match group[0].within.as_ref() {
                _ if !pinned.is_empty() => pinned.join(","),
                Some(within) => format!("not pinned within {within}"),
                None => "not pinned".to_owned(),
            };
            match group[0].node {
                Some(node) => format!("{cores} of node {node}"),
                None => cores,
            }
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// So many shards, left to the kernel.
    pub fn floating(shards: u16) -> Plan {
        let place = |id| Place {
            shard: ShardId(id),
            cpu: None,
            within: None,
            node: None,
            memory: None,
        };
        Plan {
            places: (0..shards).map(place).collect(),
            warnings: Vec::new(),
        }
    }
}

impl fmt::Display for PlanWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanWarning::Crowded { shards, cpus } => {
                write!(f, "{shards} shards on {cpus} cores: shards are not pinned")
            }
            PlanWarning::OverQuota { shards, quota_cpus } => {
                write!(
                    f,
                    "{shards} shards, but the CPU quota comes to {quota_cpus}: they will be throttled"
                )
            }
            PlanWarning::QuotaAndPins => {
                write!(
                    f,
                    "pinned under a CPU quota: others may be on the same cores; a list of cores is better"
                )
            }
            PlanWarning::QuotaSoUnpinned => {
                write!(
                    f,
                    "limited by a CPU quota, so shards are not pinned; name the cores to pin"
                )
            }
            PlanWarning::SpansNodes(nodes) => {
                write!(
                    f,
                    "shards span memory nodes {nodes:?}; choose one with --numa N, or say --numa auto"
                )
            }
        }
    }
}

/// Shards at most: no more than cores that can be named.
const SHARDS_MAX: usize = 1024;

const _: () = assert!(SHARDS_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests;
