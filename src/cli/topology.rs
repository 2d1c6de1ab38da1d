//! `narwhal topology`: what the machine has, what this process may use of it, and where `serve` would put its shards.
//!
//! Shows what is known and names each file that says nothing that makes sense. A plan that `serve` would refuse is told behind the machine,
//! and ends with the exit code that `serve` would end with.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::Failure;
use super::flags;
use super::router;
use crate::config;
use crate::runtime::boot;
use crate::runtime::topology::machine::ReadFault;
use crate::runtime::topology::network::{self, Irq, Nic};
use crate::runtime::topology::{self, CpuList, Machine, Node, Place, Plan, PlanError};

/// The version of the JSON; members are added and never renamed.
const SCHEMA_VERSION: u32 = 1;

pub fn run(args: flags::Topology) -> Result<(), Failure> {
    let mut asked = args.place.parsed()?;
    if let Some(file) = &args.fleet {
        let env = |name: &str| std::env::var(name).ok();
        let runtime = config::load(file, &env)
            .map_err(Failure::config)?
            .fleet
            .runtime;
        asked.shards = asked.shards.or(runtime.shards);
        asked.cpus = asked.cpus.or(runtime.cpus);
        asked.numa = asked.numa.or(runtime.numa);
    }
    let root = args.root.as_deref();
    let machine = match root {
        Some(root) => Machine::below(root).map_err(Failure::failed)?,
        None => boot::machine().map_err(Failure::failed)?,
    };
    let (nics, odd) = network::nics(root.unwrap_or(Path::new("/")));
    let plan = router::ask(asked.shards, asked.cpus.as_ref(), asked.numa)
        .and_then(|ask| topology::plan(&machine, &ask));
    let found = Found {
        odd: machine.faults.iter().chain(&odd).collect(),
        machine: &machine,
        nics: &nics,
        plan: &plan,
    };
    let text = if args.json {
        format!("{:#}\n", found.json())
    } else {
        found.text()
    };
    // Whoever closed the pipe has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    plan.map(drop).map_err(Failure::config)
}

struct Found<'a> {
    machine: &'a Machine,
    nics: &'a [Nic],
    odd: Vec<&'a ReadFault>,
    plan: &'a Result<Plan, PlanError>,
}

impl Found<'_> {
    fn json(&self) -> Value {
        let machine = self.machine;
        let node = |n: &Node| json!({"node": n.id, "cpus": ids(Some(&n.cpus)), "memory_bytes": n.memory_bytes});
        let odd =
            |fault: &&ReadFault| json!({"file": fault.path.to_string_lossy(), "why": fault.why});
        let places = |plan: &Plan| -> Value { plan.places.iter().map(place).collect() };
        let warnings = |plan: &Plan| -> Value {
            plan.warnings
                .iter()
                .map(|w| Value::from(w.to_string()))
                .collect()
        };
        let plan = self.plan.as_ref().ok();
        json!({
            "schema": "narwhal.topology",
            "schema_version": SCHEMA_VERSION,
            "cpus": {
                "usable": ids(Some(&machine.cpus)),
                "online": ids(machine.online.as_ref()),
                "offline": ids(machine.offline.as_ref()),
                "cores": machine.cores.iter().map(|core| ids(Some(core))).collect::<Value>(),
            },
            "nodes": machine.nodes.iter().map(node).collect::<Value>(),
            "cgroup": {
                "quota_cpus": machine.cgroup.quota,
                "cpuset": ids(machine.cgroup.cpuset.as_ref()),
                "memory_bytes": machine.cgroup.memory_bytes,
            },
            "nics": self.nics.iter().map(nic).collect::<Value>(),
            "plan": plan.map(places),
            "warnings": plan.map_or(json!([]), warnings),
            "refused": self.plan.as_ref().err().map(ToString::to_string),
            "odd": self.odd.iter().map(odd).collect::<Value>(),
        })
    }

    fn text(&self) -> String {
        let machine = self.machine;
        let mut out = Lines::default();
        out.line("cores", format!("{} usable", machine.cpus));
        let known = [("online", &machine.online), ("offline", &machine.offline)];
        for (name, list) in known {
            if let Some(list) = list {
                out.more(&format!(", {list} {name}"));
            }
        }
        let threads = machine.cores.iter().map(|core| core.ids().len()).max();
        out.line(
            "threads",
            match threads {
                None => "not known which share a core".to_owned(),
                Some(1) => "one a core".to_owned(),
                Some(most) => format!("up to {most} a core: {}", joined(&machine.cores, " ")),
            },
        );
        for node in &machine.nodes {
            out.line(&format!("node {}", node.id), format!("cores {}", node.cpus));
            if let Some(bytes) = node.memory_bytes {
                out.more(&format!(", {}", gib(bytes)));
            }
        }
        if machine.nodes.is_empty() {
            out.line("nodes", "not known".to_owned());
        }
        out.line("cgroup", self.cgroup());
        for nic in self.nics {
            out.line(
                &nic.name,
                format!(
                    "{} receive and {} send queues",
                    nic.receive_queues, nic.send_queues
                ),
            );
            if let Some(node) = nic.node {
                out.more(&format!(", node {node}"));
            }
            for irq in &nic.irqs {
                out.line("", irq_text(irq));
            }
        }
        self.plan_text(&mut out);
        for fault in &self.odd {
            out.line("odd file", fault.to_string());
        }
        out.0
    }

    fn cgroup(&self) -> String {
        let cgroup = &self.machine.cgroup;
        let quota = cgroup
            .quota
            .map(|cores| format!("CPU quota {cores:.2} cores"));
        let set = cgroup.cpuset.as_ref().map(|set| format!("cpuset {set}"));
        let memory = cgroup
            .memory_bytes
            .map(|bytes| format!("memory {}", gib(bytes)));
        let limits: Vec<_> = [quota, set, memory].into_iter().flatten().collect();
        match limits.is_empty() {
            true => "no limits".to_owned(),
            false => limits.join(", "),
        }
    }

    fn plan_text(&self, out: &mut Lines) {
        let plan = match self.plan {
            Ok(plan) => plan,
            Err(why) => return out.line("plan", format!("refused: {why}")),
        };
        out.line(
            "plan",
            format!("{} shards, cores {}", plan.places.len(), plan.cores()),
        );
        for place in &plan.places {
            let cores = match (place.cpu, &place.within) {
                (Some(cpu), _) => format!("core {cpu}"),
                (None, Some(within)) => format!("any core of {within}"),
                (None, None) => "any core".to_owned(),
            };
            out.line("", format!("shard {}: {cores}", place.shard));
            match (place.node, place.memory) {
                (Some(node), Some(_)) => out.more(&format!(", node {node} and its memory")),
                (Some(node), None) => out.more(&format!(", node {node}")),
                _ => {}
            }
        }
        for warning in &plan.warnings {
            out.line("warning", warning.to_string());
        }
    }
}

/// Lines of a name and what there is to say of it.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, text: String) {
        // Writing to a text does not fail.
        let _ = writeln!(self.0, "{name:<10} {text}");
    }

    /// Adds to the last line.
    fn more(&mut self, text: &str) {
        self.0.pop();
        self.0.push_str(text);
        self.0.push('\n');
    }
}

fn irq_text(irq: &Irq) -> String {
    let cores = |list: &Option<CpuList>| list.as_ref().map(ToString::to_string);
    let allowed = cores(&irq.allowed).unwrap_or_else(|| "not known".to_owned());
    let effective = cores(&irq.effective).filter(|effective| *effective != allowed);
    let now = effective.map_or_else(String::new, |cores| format!(", now {cores}"));
    format!("irq {} {}: cores {allowed}{now}", irq.number, irq.action)
}

fn nic(nic: &Nic) -> Value {
    let irq = |irq: &Irq| {
        json!({
            "irq": irq.number,
            "action": irq.action,
            "allowed": ids(irq.allowed.as_ref()),
            "effective": ids(irq.effective.as_ref()),
        })
    };
    json!({
        "name": nic.name,
        "node": nic.node,
        "receive_queues": nic.receive_queues,
        "send_queues": nic.send_queues,
        "irqs": nic.irqs.iter().map(irq).collect::<Value>(),
    })
}

fn place(place: &Place) -> Value {
    json!({
        "shard": place.shard.index(),
        "cpu": place.cpu,
        "within": ids(place.within.as_ref()),
        "node": place.node,
        "memory_node": place.memory,
    })
}

fn ids(list: Option<&CpuList>) -> Value {
    list.map_or(Value::Null, |list| json!(list.ids()))
}

fn joined(lists: &[CpuList], mark: &str) -> String {
    let lists: Vec<String> = lists.iter().map(ToString::to_string).collect();
    lists.join(mark)
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
