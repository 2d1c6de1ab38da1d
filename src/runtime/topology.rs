//! What the machine offers a data plane, and the plan that follows: which shards, on which cores.
//!
//! Owns nothing; reads `/sys` and `/proc` below a root that is a parameter, so that tests build machines of files.
//! Never pins anything itself. Invariants of a plan: at least one shard; a core carries at most one pinned shard;
//! cores of one node are neighbours in the list.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::base::units::ShardId;

/// Cores as Linux writes them, `0-3,8`: ascending, each once, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// What this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The affinity mask, which a cpuset narrows.
    pub cpus: CpuList,
    /// Whole cores that the CPU quota of the cgroup comes to, rounded up; `None` without a quota.
    pub quota_cpus: Option<usize>,
    /// Memory nodes with their cores; empty where the kernel does not say.
    pub nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: usize,
    pub cpus: CpuList,
}

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub places: Vec<Place>,
    pub warnings: Vec<PlanWarning>,
}

/// One shard's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub shard: ShardId,
    /// The core to pin to; `None` leaves the thread to the kernel.
    pub cpu: Option<usize>,
    /// The memory node of `cpu`.
    pub node: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("cpus: `{0}` is not a list of cores such as 0-3,8 (ids 0 to {max})", max = CPU_ID_MAX)]
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
    let places = (0..shards).map(|index| {
        let cpu = cpus.get(index).copied().filter(|_| pin);
        // SHARDS_MAX fits the id.
        let shard = ShardId(index as u16);
        Place {
            shard,
            cpu,
            node: cpu.and_then(|cpu| machine.node_of(cpu)),
        }
    });
    Ok(Plan {
        places: places.collect(),
        warnings,
    })
}

/// The cores to use, node by node.
fn candidates(
    machine: &Machine,
    ask: &Ask,
    warnings: &mut Vec<PlanWarning>,
) -> Result<Vec<usize>, PlanError> {
    let listed = ask.cpus.as_ref();
    let mut cpus = listed.unwrap_or(&machine.cpus).0.clone();
    if let Some(cpu) = cpus.iter().find(|cpu| !machine.cpus.0.contains(cpu)) {
        return Err(PlanError::OutsideMask(*cpu));
    }
    if let Numa::Node(node) = ask.numa {
        cpus.retain(|cpu| machine.node_of(*cpu) == Some(node));
        if cpus.is_empty() {
            return Err(PlanError::NoSuchNode(node));
        }
    }
    cpus.sort_by_key(|cpu| (machine.node_of(*cpu), *cpu));
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

impl Machine {
    /// Reads the machine below `root` (`/` outside tests) for a process whose mask is `cpus`.
    pub fn read(root: &Path, cpus: CpuList) -> Machine {
        Machine {
            cpus,
            quota_cpus: quota_cpus(root),
            nodes: nodes(root),
        }
    }

    pub fn node_of(&self, cpu: usize) -> Option<usize> {
        self.nodes
            .iter()
            .find(|node| node.cpus.0.contains(&cpu))
            .map(|node| node.id)
    }
}

/// The tightest CPU quota from our cgroup up to the root, in whole cores rounded up. Version 2 and version 1.
fn quota_cpus(root: &Path) -> Option<usize> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut tightest: Option<usize> = None;
    for line in own.lines() {
        // hierarchy:controllers:path, where version 2 has no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let mounts: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            list if list.split(',').any(|name| name == "cpu") => {
                &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
            }
            _ => continue,
        };
        for mount in mounts {
            let here = quota_up_from(&root.join(mount), path);
            tightest = tightest.into_iter().chain(here).min();
        }
    }
    tightest
}

/// In a container the path may name a group that only the host sees; the walk then ends at the mount, which is ours.
fn quota_up_from(mount: &Path, path: &str) -> Option<usize> {
    let mut tightest: Option<usize> = None;
    let mut below = PathBuf::from(path.trim_matches('/'));
    loop {
        // A path with `..` comes from outside the cgroup namespace; only the mount itself is sure.
        if !below.components().any(|part| part.as_os_str() == "..") {
            let here = quota_at(&mount.join(&below));
            tightest = tightest.into_iter().chain(here).min();
        }
        if !below.pop() {
            return tightest;
        }
    }
}

fn quota_at(group: &Path) -> Option<usize> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    if let Some(text) = read("cpu.max") {
        let mut fields = text.split_whitespace();
        return whole_cpus(fields.next()?, fields.next().unwrap_or("100000"));
    }
    whole_cpus(
        read("cpu.cfs_quota_us")?.trim(),
        read("cpu.cfs_period_us")?.trim(),
    )
}

/// `max` and -1 mean no quota.
fn whole_cpus(quota_us: &str, period_us: &str) -> Option<usize> {
    let quota_us: u64 = quota_us.parse().ok()?;
    let period_us: u64 = period_us.parse().ok().filter(|period| *period > 0)?;
    usize::try_from(quota_us.div_ceil(period_us).max(1)).ok()
}

fn nodes(root: &Path) -> Vec<Node> {
    let base = root.join("sys/devices/system/node");
    let list = |path: PathBuf| -> Option<CpuList> { fs::read_to_string(path).ok()?.parse().ok() };
    let Some(online) = list(base.join("online")) else {
        return Vec::new();
    };
    let node = |id: &usize| {
        // A node of memory alone has an empty list, which does not parse.
        let cpus = list(base.join(format!("node{id}/cpulist")))?;
        Some(Node { id: *id, cpus })
    };
    online.0.iter().filter_map(node).collect()
}

impl CpuList {
    /// Ascending and each once, whatever the order given; `None` when empty or out of range.
    pub fn new(mut ids: Vec<usize>) -> Option<CpuList> {
        ids.sort_unstable();
        ids.dedup();
        (ids.last().is_some_and(|last| *last <= CPU_ID_MAX)).then_some(CpuList(ids))
    }

    pub fn ids(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for CpuList {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<CpuList, PlanError> {
        let wrong = || PlanError::List(text.chars().take(64).collect());
        let id = |text: &str| -> Result<usize, PlanError> {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let id = text.parse().ok().filter(|id| digits && *id <= CPU_ID_MAX);
            id.ok_or_else(wrong)
        };
        let mut ids = Vec::new();
        // Checked before it is split: at most every core by number and comma.
        if text.len() > 5 * (CPU_ID_MAX + 1) {
            return Err(wrong());
        }
        for range in text.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (id(first)?, id(last)?);
            if first > last {
                return Err(wrong());
            }
            ids.extend(first..=last);
        }
        CpuList::new(ids).ok_or_else(wrong)
    }
}

/// As Linux writes it: runs joined with `-`.
impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
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

/// What a `cpu_set_t` holds (CPU_SETSIZE, 1024); core_affinity panics past it.
const CPU_ID_MAX: usize = 1023;

/// Shards at most: no more than cores that can be named.
const SHARDS_MAX: usize = 1024;

const _: () = assert!(SHARDS_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests;
