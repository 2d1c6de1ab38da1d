//! Network cards: their node, their queues, and which cores their interrupts go to. For people; no plan depends on it.
//!
//! An interrupt is a card's when `device/msi_irqs` of the card names it, or its action in `/proc/interrupts` has the card's name
//! (`eth0-TxRx-0`) or that of the card's virtio device (`virtio2-input.0`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::CpuList;
use super::machine::{ReadFault, Tree};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    /// The node of the bus that the card is on; `None` for a virtual one, and where there are no nodes.
    pub node: Option<usize>,
    pub receive_queues: usize,
    pub send_queues: usize,
    pub irqs: Vec<Irq>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Irq {
    pub number: u32,
    /// As `/proc/interrupts` tells it; empty when that does not know the number.
    pub action: String,
    /// The cores that it may go to, and those that it does go to.
    pub allowed: Option<CpuList>,
    pub effective: Option<CpuList>,
}

/// All but the loopback, by name.
pub fn nics(root: &Path) -> (Vec<Nic>, Vec<ReadFault>) {
    let mut tree = Tree::new(root);
    let interrupts = tree.text("proc/interrupts").unwrap_or_default();
    let actions: Vec<(u32, &str)> = actions(&interrupts).collect();
    let mut names = names(&root.join("sys/class/net"));
    names.retain(|name| name != "lo");
    let nics = names
        .into_iter()
        .map(|name| nic(&mut tree, name, &actions))
        .collect();
    (nics, tree.faults)
}

fn nic(tree: &mut Tree<'_>, name: String, actions: &[(u32, &str)]) -> Nic {
    let base = Path::new("sys/class/net").join(&name);
    let queues = names(&tree.root.join(&base).join("queues"));
    let count = |prefix: &str| queues.iter().filter(|q| q.starts_with(prefix)).count();
    let path = base.join("device/numa_node");
    // -1 where the bus has no node. A virtio device has none of its own: its parent has.
    let text = match tree.text(&path) {
        Some(text) => Some(text),
        None => tree.text(base.join("device/../numa_node")),
    };
    let node = text.and_then(|text| match text.trim() {
        "-1" => None,
        number => match number.parse() {
            Ok(node) => Some(node),
            Err(_) => tree.odd(&path, "is no number of a node".to_owned()),
        },
    });
    let numbers: BTreeSet<u32> = names(&tree.root.join(&base).join("device/msi_irqs"))
        .iter()
        .filter_map(|number| number.parse().ok())
        .collect();
    let device = fs::read_link(tree.root.join(&base).join("device")).unwrap_or_default();
    let device = device.file_name().unwrap_or_default().to_string_lossy();
    let virtio = device.starts_with("virtio").then_some(&*device);
    let is_ours = |(_, action): &&(u32, &str)| {
        let mut named = virtio.into_iter().chain([&*name]);
        named.any(|name| names_card(action, name))
    };
    let told = actions.iter().filter(is_ours).map(|(number, _)| *number);
    let all: BTreeSet<u32> = numbers.into_iter().chain(told).take(IRQS_MAX).collect();
    Nic {
        receive_queues: count("rx-"),
        send_queues: count("tx-"),
        irqs: all.into_iter().map(|n| irq(tree, n, actions)).collect(),
        name,
        node,
    }
}

fn irq(tree: &mut Tree<'_>, number: u32, actions: &[(u32, &str)]) -> Irq {
    let base = Path::new("proc/irq").join(number.to_string());
    let action = actions.iter().find(|(known, _)| *known == number);
    Irq {
        number,
        action: action.map_or_else(String::new, |(_, action)| {
            action
                .chars()
                .filter(|c| !c.is_control())
                .take(80)
                .collect()
        }),
        allowed: tree.list(base.join("smp_affinity_list")),
        effective: tree.list(base.join("effective_affinity_list")),
    }
}

/// Whether a word of the action is the card's name, or begins with it and a mark: `eth0`, `eth0-rx-1`, and not `eth01`.
fn names_card(action: &str, name: &str) -> bool {
    let mut words = action.split([' ', ',']);
    words.any(|word| {
        let rest = word.strip_prefix(name);
        rest.is_some_and(|rest| {
            rest.chars()
                .next()
                .is_none_or(|c| matches!(c, '-' | ':' | '@'))
        })
    })
}

/// The numbered lines of `/proc/interrupts`: a number, a count for each core, and what is left, from which the chip and the kind of
/// line are taken off: those are words of their own, in number and form as the architecture likes, so the last word with what is
/// listed before it by commas is the action.
fn actions(text: &str) -> impl Iterator<Item = (u32, &str)> {
    text.lines().filter_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let number = number.trim().parse().ok()?;
        let mut rest = rest.trim();
        while let Some((first, more)) = rest.split_once(' ') {
            if !first.bytes().all(|b| b.is_ascii_digit()) {
                break;
            }
            rest = more.trim_start();
        }
        let mut from = rest.len();
        for (at, word) in rest.rmatch_indices(' ').map(|(at, _)| (at, &rest[..at])) {
            from = at + 1;
            if !word.trim_end().ends_with(',') {
                break;
            }
        }
        let from = if rest.contains(' ') { from } else { 0 };
        Some((number, &rest[from..]))
    })
}

/// What is in a directory, sorted; nothing where there is none.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().take(ENTRIES_MAX);
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}

/// Cards, or queues of a card (Linux: 4096 at most), that are looked at.
const ENTRIES_MAX: usize = 16_384;
/// Interrupts of a card that are told.
const IRQS_MAX: usize = 4096;
