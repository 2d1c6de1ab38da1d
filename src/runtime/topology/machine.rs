//! Reads a machine: cores and their threads, memory nodes, and what the cgroup leaves of them.
//!
//! Invariant: odd files are told and never end the reading. A file that is not there says that the kernel, or the container, does not
//! know; one that is there and cannot be understood becomes a [`ReadFault`], and what it would have said counts as not known. No file
//! is read beyond [`FILE_BYTES_MAX`].

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::CpuList;

/// What this process may use, and what there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The affinity mask, which a cpuset narrows.
    pub cpus: CpuList,
    /// Cores that run, and that the kernel has and does not run; `None` where it does not say.
    pub online: Option<CpuList>,
    pub offline: Option<CpuList>,
    /// The threads of each physical core that are online, by the lowest; empty where the kernel does not say.
    pub cores: Vec<CpuList>,
    /// Whole cores that the CPU quota of the cgroup comes to, rounded up; `None` without a quota.
    pub quota_cpus: Option<usize>,
    /// Memory nodes with cores; empty where the kernel does not say.
    pub nodes: Vec<Node>,
    pub cgroup: Cgroup,
    pub faults: Vec<ReadFault>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: usize,
    pub cpus: CpuList,
    pub memory_bytes: Option<u64>,
}

/// The tightest limits from our cgroup up to the root, of either version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cgroup {
    /// Cores that the CPU quota comes to.
    pub quota: Option<f64>,
    /// Cores of the nearest cpuset. The affinity mask has it in it already.
    pub cpuset: Option<CpuList>,
    pub memory_bytes: Option<u64>,
}

/// A file that is there and says nothing that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFault {
    /// From the root of the tree.
    pub path: PathBuf,
    pub why: String,
}

impl Machine {
    /// Reads the machine below `root` (`/` outside tests) for a process whose mask is `cpus`.
    pub fn read(root: &Path, cpus: CpuList) -> Machine {
        let mut tree = Tree::new(root);
        let cgroup = cgroup(&mut tree);
        let base = Path::new("sys/devices/system/cpu");
        let online = tree.list(base.join("online"));
        Machine {
            quota_cpus: cgroup.quota.map(|cores| (cores.ceil() as usize).max(1)),
            offline: tree.list(base.join("offline")),
            cores: cores(&mut tree, online.as_ref().unwrap_or(&cpus)),
            nodes: nodes(&mut tree),
            faults: tree.faults,
            online,
            cgroup,
            cpus,
        }
    }

    /// As [`Machine::read`], the mask too: that of the process whose `proc/self` is in the tree, else every core that is online and in
    /// the cpuset.
    pub fn below(root: &Path) -> Result<Machine, ReadFault> {
        let mut tree = Tree::new(root);
        let mask = mask(&mut tree).or_else(|| {
            let online = tree.list("sys/devices/system/cpu/online")?;
            match cgroup(&mut tree).cpuset {
                Some(set) => online.common(&set),
                None => Some(online),
            }
        });
        let mask = mask.ok_or_else(|| ReadFault {
            path: "proc/self/status".into(),
            why: "says no affinity mask, and no file below sys/devices/system/cpu does".into(),
        })?;
        let mut machine = Machine::read(root, mask);
        machine.faults.splice(0..0, tree.faults);
        machine.faults.sort_by(|a, b| a.path.cmp(&b.path));
        machine.faults.dedup();
        Ok(machine)
    }

    pub fn node_of(&self, cpu: usize) -> Option<usize> {
        self.nodes
            .iter()
            .find(|node| node.cpus.ids().contains(&cpu))
            .map(|node| node.id)
    }
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

/// Files below a root, and what was odd about them.
pub(super) struct Tree<'a> {
    pub root: &'a Path,
    pub faults: Vec<ReadFault>,
}

impl<'a> Tree<'a> {
    pub fn new(root: &'a Path) -> Tree<'a> {
        Tree {
            root,
            faults: Vec::new(),
        }
    }

    /// The text of a file; `None` when there is none.
    pub fn text(&mut self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        let read = File::open(self.root.join(path))
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                None
            }
            Err(error) => self.odd(path, error.to_string()),
        }
    }

    /// A list of cores; `None` for an empty one.
    pub fn list(&mut self, path: impl AsRef<Path>) -> Option<CpuList> {
        let text = self.text(&path)?;
        self.list_in(path.as_ref(), text.trim())
    }

    /// What `text` of the file at `path` lists.
    fn list_in(&mut self, path: &Path, text: &str) -> Option<CpuList> {
        if text.is_empty() {
            return None;
        }
        match text.parse() {
            Ok(list) => Some(list),
            Err(_) => self.odd(path, format!("`{}` is no list of cores", cut(text))),
        }
    }

    pub fn odd<T>(&mut self, path: &Path, why: String) -> Option<T> {
        // Of a thousand odd files the first ones tell enough.
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(ReadFault {
                path: path.into(),
                why,
            });
        }
        None
    }
}

/// The start of a text, fit for a message.
fn cut(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

fn mask(tree: &mut Tree<'_>) -> Option<CpuList> {
    let path = Path::new("proc/self/status");
    let text = tree.text(path)?;
    let mut lines = text.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    tree.list_in(path, list.trim())
}

fn cores(tree: &mut Tree<'_>, cpus: &CpuList) -> Vec<CpuList> {
    let mut cores: Vec<CpuList> = Vec::new();
    for cpu in cpus.ids() {
        let known = cores.iter().any(|core| core.ids().contains(cpu));
        if !known {
            let base = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            // The new name, since Linux 5.2, and the old one.
            let core = tree
                .list(format!("{base}/core_cpus_list"))
                .or_else(|| tree.list(format!("{base}/thread_siblings_list")));
            // A core is a thread of its own core, whatever the file says.
            cores.extend(core.filter(|core| core.ids().contains(cpu)));
        }
    }
    cores
}

fn nodes(tree: &mut Tree<'_>) -> Vec<Node> {
    let base = Path::new("sys/devices/system/node");
    let Some(online) = tree.list(base.join("online")) else {
        return Vec::new();
    };
    let mut nodes = Vec::new();
    for id in online.ids() {
        let dir = base.join(format!("node{id}"));
        // A node of memory alone has an empty list.
        if let Some(cpus) = tree.list(dir.join("cpulist")) {
            let memory = tree.text(dir.join("meminfo"));
            nodes.push(Node {
                id: *id,
                cpus,
                memory_bytes: memory.as_deref().and_then(memory_total),
            });
        }
    }
    nodes
}

/// From a line such as `Node 0 MemTotal:  8043664 kB`.
fn memory_total(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let (_, rest) = lines.find_map(|line| line.split_once("MemTotal:"))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn cgroup(tree: &mut Tree<'_>) -> Cgroup {
    let own = tree.text("proc/self/cgroup").unwrap_or_default();
    let mut found = Cgroup::default();
    for line in own.lines() {
        // hierarchy:controllers:path, where version 2 has no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            let path = Path::new("proc/self/cgroup");
            tree.odd::<()>(path, format!("`{}` names no cgroup", cut(line)));
            continue;
        };
        let has = |name: &str| controllers.split(',').any(|c| c == name);
        let mut mounts = Vec::new();
        if controllers.is_empty() {
            mounts.extend(["sys/fs/cgroup", "sys/fs/cgroup/unified"]);
        }
        if has("cpu") {
            mounts.extend(["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]);
        }
        for name in ["cpuset", "memory"].into_iter().filter(|name| has(name)) {
            mounts.push(match name {
                "cpuset" => "sys/fs/cgroup/cpuset",
                _ => "sys/fs/cgroup/memory",
            });
        }
        for mount in mounts {
            limits_up_from(tree, Path::new(mount), path, &mut found);
        }
    }
    found
}

/// In a container the path may name a group that only the host sees; the walk then ends at the mount, which is ours.
fn limits_up_from(tree: &mut Tree<'_>, mount: &Path, path: &str, found: &mut Cgroup) {
    let mut below = PathBuf::from(path.trim_matches('/'));
    loop {
        // A path with `..` comes from outside the cgroup namespace; only the mount itself is sure.
        if !below.components().any(|part| part.as_os_str() == "..") {
            limits_at(tree, &mount.join(&below), found);
        }
        if !below.pop() {
            return;
        }
    }
}

fn limits_at(tree: &mut Tree<'_>, group: &Path, found: &mut Cgroup) {
    let quota = quota_at(tree, group);
    let tighter = |quota: f64| found.quota.is_none_or(|known| quota < known);
    found.quota = quota.filter(|quota| tighter(*quota)).or(found.quota);
    for name in [
        "cpuset.cpus.effective",
        "cpuset.effective_cpus",
        "cpuset.cpus",
    ] {
        if found.cpuset.is_none() {
            found.cpuset = tree.list(group.join(name));
        }
    }
    for name in ["memory.max", "memory.limit_in_bytes"] {
        let path = group.join(name);
        let Some(text) = tree.text(&path) else {
            continue;
        };
        let bytes = match text.trim() {
            "max" => None,
            number => match number.parse::<u64>() {
                // Version 1 writes "no limit" as the largest number of whole pages.
                Ok(bytes) => Some(bytes).filter(|bytes| *bytes < 1 << 62),
                Err(_) => tree.odd(&path, format!("`{}` is no number of bytes", cut(number))),
            },
        };
        found.memory_bytes = found.memory_bytes.into_iter().chain(bytes).min();
    }
}

/// Cores that the quota of one group comes to. `max` and -1 mean no quota.
fn quota_at(tree: &mut Tree<'_>, group: &Path) -> Option<f64> {
    let path = group.join("cpu.max");
    let (path, quota, period) = if let Some(text) = tree.text(&path) {
        let mut fields = text.split_whitespace().map(str::to_owned);
        let quota = fields.next().unwrap_or_default();
        let period = fields.next().unwrap_or_else(|| "100000".to_owned());
        (path, quota, period)
    } else {
        let path = group.join("cpu.cfs_quota_us");
        let quota = tree.text(&path)?.trim().to_owned();
        let period = tree.text(group.join("cpu.cfs_period_us"))?;
        (path, quota, period.trim().to_owned())
    };
    if quota == "max" || quota == "-1" {
        return None;
    }
    let period_us = period.parse::<u64>().ok().filter(|period| *period > 0);
    match (quota.parse::<u64>(), period_us) {
        (Ok(quota_us), Some(period_us)) => Some(quota_us as f64 / period_us as f64),
        _ => {
            let why = format!("`{} {}` is no quota", cut(&quota), cut(&period));
            tree.odd(&path, why)
        }
    }
}

/// `/proc/interrupts` of 1024 cores and 1024 interrupts is 11 MiB.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

const FAULTS_MAX: usize = 64;
