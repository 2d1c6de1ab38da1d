//! Machines made of files, and the plans for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::network::{Irq, Nic, nics};
use super::*;

fn list(text: &str) -> CpuList {
    text.parse().expect(text)
}

#[test]
fn lists_of_cores() {
    for (text, ids) in [
        ("0", Some(vec![0])),
        ("0-3,8", Some(vec![0, 1, 2, 3, 8])),
        ("8,0-1\n", Some(vec![0, 1, 8])),
        ("3-3,3,2-4", Some(vec![2, 3, 4])),
        ("1023", Some(vec![1023])),
        ("1024", None),
        ("0-99999999999999999999", None),
        ("0-4294967295", None),
        ("3-1", None),
        ("", None),
        (",", None),
        ("0,", None),
        ("0--1", None),
        ("-1", None),
        ("+1", None),
        ("a", None),
        ("0 1", None),
    ] {
        assert_eq!(
            text.parse::<CpuList>().ok().map(|l| l.ids().to_vec()),
            ids,
            "{text:?}"
        );
    }
    assert!("1,".repeat(1 << 20).parse::<CpuList>().is_err());
    for text in ["0", "0-3,8", "1,3,5-6"] {
        assert_eq!(list(text).to_string(), text);
    }
}

/// A directory of files that goes away with the value.
struct Tree(PathBuf);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("narwhal-topology-{}-{n}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a file in a directory")).expect("made");
            fs::write(path, text).expect("written");
        }
        Tree(root)
    }
}

impl Tree {
    /// The files of a machine with so many nodes, cores a node and threads a core, numbered as `number` says of (node, core, thread).
    fn machine(
        (nodes, cores, threads): (usize, usize, usize),
        number: impl Fn(usize, usize, usize) -> usize,
    ) -> Tree {
        let text = |mut ids: Vec<usize>| {
            ids.sort_unstable();
            let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
            ids.join(",") + "\n"
        };
        let total = nodes * cores * threads;
        let online = format!("0-{}\n", total - 1);
        let mut files = vec![
            ("sys/devices/system/cpu/online".to_owned(), online.clone()),
            ("sys/devices/system/cpu/offline".to_owned(), "\n".to_owned()),
            (
                "sys/devices/system/node/online".to_owned(),
                format!("0-{}\n", nodes - 1),
            ),
            (
                "proc/self/status".to_owned(),
                format!("Name:\tx\nCpus_allowed_list:\t{online}"),
            ),
        ];
        for node in 0..nodes {
            let dir = format!("sys/devices/system/node/node{node}");
            let mut all = Vec::new();
            for core in 0..cores {
                let ids: Vec<_> = (0..threads)
                    .map(|thread| number(node, core, thread))
                    .collect();
                for id in &ids {
                    let file = format!("sys/devices/system/cpu/cpu{id}/topology/core_cpus_list");
                    files.push((file, text(ids.clone())));
                }
                all.extend(ids);
            }
            let meminfo =
                format!("Node {node} MemTotal:       67108864 kB\nNode {node} MemFree: 1 kB\n");
            files.push((format!("{dir}/meminfo"), meminfo));
            files.push((format!("{dir}/cpulist"), text(all)));
        }
        let rows: Vec<_> = files
            .iter()
            .map(|(path, text)| (&path[..], &text[..]))
            .collect();
        Tree::new(&rows)
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a file in a directory")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.join(path)).expect("it is there");
    }

    fn read(&self) -> Machine {
        Machine::below(&self.0).expect("a mask")
    }
}

/// How Intel servers number: all first threads, then all second ones, nodes taking turns.
fn spread(node: usize, core: usize, thread: usize) -> usize {
    thread * 8 + core * 2 + node
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

// proves R-SHD-1
#[test]
fn quotas_of_both_versions() {
    let v1 = (
        "proc/self/cgroup",
        "3:cpuset:/\n4:cpuacct,cpu:/docker/x\n0::/\n",
    );
    for (name, files, expected) in [
        ("no files", vec![], None),
        (
            "v2 none",
            vec![
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "max 100000\n"),
            ],
            None,
        ),
        (
            "v2 rounds up",
            vec![
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "250000 100000\n"),
            ],
            Some(3),
        ),
        (
            "v2 under one",
            vec![
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "1000 100000\n"),
            ],
            Some(1),
        ),
        (
            "v2 the tightest of the path",
            vec![
                ("proc/self/cgroup", "0::/pods/a\n"),
                ("sys/fs/cgroup/pods/a/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/pods/cpu.max", "400000 100000\n"),
                ("sys/fs/cgroup/cpu.max", "800000 100000\n"),
            ],
            Some(4),
        ),
        (
            "v2 a path of the host",
            vec![
                ("proc/self/cgroup", "0::/../../x\n"),
                ("sys/fs/cgroup/cpu.max", "200000 100000\n"),
            ],
            Some(2),
        ),
        (
            "v2 nonsense",
            vec![
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "5 0\n"),
            ],
            None,
        ),
        (
            "v2 nonsense in words",
            vec![
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "many 100000\n"),
            ],
            None,
        ),
        (
            "v2 an empty file, nonsense",
            vec![
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", ""),
            ],
            None,
        ),
        (
            "v1",
            vec![
                v1,
                ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "150000\n"),
                ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n"),
            ],
            Some(2),
        ),
        (
            "v1 mounted at the group, no limit",
            vec![
                v1,
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ],
            None,
        ),
    ] {
        let tree = Tree::new(&files);
        let machine = Machine::read(&tree.0, list("0"));
        assert_eq!(machine.quota_cpus, expected, "{name}");
        assert_eq!(
            machine.faults.len(),
            usize::from(name.contains("nonsense")),
            "{name}"
        );
    }
}

const TWO_NODES: &[(&str, &str)] = &[
    ("sys/devices/system/node/online", "0-2\n"),
    ("sys/devices/system/node/node0/cpulist", "0,2\n"),
    ("sys/devices/system/node/node1/cpulist", "1,3\n"),
    ("sys/devices/system/node/node2/cpulist", "\n"),
];

fn machine(files: &[(&str, &str)], cpus: &str, quota_cpus: Option<usize>) -> Machine {
    let tree = Tree::new(files);
    Machine {
        quota_cpus,
        ..Machine::read(&tree.0, list(cpus))
    }
}

fn cpus_of(plan: &Plan) -> Vec<Option<usize>> {
    plan.places.iter().map(|place| place.cpu).collect()
}

// proves R-SHD-2
#[test]
fn nodes_come_one_after_the_other() {
    let two = machine(TWO_NODES, "0-3", None);
    assert_eq!(two.nodes.len(), 2);
    let plain = plan(&two, &Ask::default()).unwrap();
    assert_eq!(cpus_of(&plain), [Some(0), Some(2), Some(1), Some(3)]);
    let nodes: Vec<_> = plain.places.iter().map(|place| place.node).collect();
    assert_eq!(nodes, [Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(plain.warnings, [PlanWarning::SpansNodes(vec![0, 1])]);

    let auto = plan(
        &two,
        &Ask {
            numa: Numa::Auto,
            ..Ask::default()
        },
    )
    .unwrap();
    assert_eq!((auto.places, auto.warnings.len()), (plain.places, 0));

    let one = plan(
        &two,
        &Ask {
            numa: Numa::Node(1),
            ..Ask::default()
        },
    )
    .unwrap();
    assert_eq!(
        (cpus_of(&one), one.warnings.len()),
        (vec![Some(1), Some(3)], 0)
    );

    let ask = |cpus: &str, numa| Ask {
        cpus: Some(list(cpus)),
        numa,
        ..Ask::default()
    };
    assert_eq!(
        plan(&two, &ask("0-1", Numa::Off)),
        Err(PlanError::SpansNodes(vec![0, 1]))
    );
    assert!(plan(&two, &ask("0-1", Numa::Auto)).is_ok());
    assert!(plan(&two, &ask("0,2", Numa::Off)).is_ok());
    assert_eq!(
        plan(&two, &ask("0,2", Numa::Node(1))),
        Err(PlanError::NoSuchNode(1))
    );
    assert_eq!(
        plan(&two, &ask("4", Numa::Off)),
        Err(PlanError::OutsideMask(4))
    );
}

// proves R-SHD-1
#[test]
fn counts_and_pins() {
    use PlanWarning::{Crowded, OverQuota, QuotaAndPins, QuotaSoUnpinned};
    let shards = |n| Ask {
        shards: Some(n),
        ..Ask::default()
    };
    let pinned = |cpus: &[usize]| cpus.iter().copied().map(Some).collect::<Vec<_>>();
    for (name, quota, ask, cpus, warnings) in [
        (
            "one a core",
            None,
            Ask::default(),
            pinned(&[2, 3, 5]),
            vec![],
        ),
        (
            "a wide quota",
            Some(3),
            Ask::default(),
            pinned(&[2, 3, 5]),
            vec![],
        ),
        (
            "a quota",
            Some(2),
            Ask::default(),
            vec![None, None],
            vec![QuotaSoUnpinned],
        ),
        (
            "a quota, pinned all the same",
            Some(2),
            Ask {
                pin: Some(true),
                ..Ask::default()
            },
            pinned(&[2, 3]),
            vec![QuotaAndPins],
        ),
        (
            "a quota and a list",
            Some(1),
            Ask {
                cpus: Some(list("3,5")),
                ..Ask::default()
            },
            pinned(&[3]),
            vec![],
        ),
        (
            "over the quota",
            Some(1),
            shards(2),
            vec![None, None],
            vec![
                OverQuota {
                    shards: 2,
                    quota_cpus: 1,
                },
                QuotaSoUnpinned,
            ],
        ),
        ("fewer", None, shards(1), pinned(&[2]), vec![]),
        (
            "more than cores",
            None,
            shards(4),
            vec![None; 4],
            vec![Crowded { shards: 4, cpus: 3 }],
        ),
        (
            "no pins",
            None,
            Ask {
                pin: Some(false),
                ..Ask::default()
            },
            vec![None; 3],
            vec![],
        ),
    ] {
        let got = plan(&machine(&[], "2-3,5", quota), &ask).expect(name);
        assert_eq!((cpus_of(&got), &got.warnings), (cpus, &warnings), "{name}");
        assert!(
            got.places
                .iter()
                .zip(0u16..)
                .all(|(place, id)| place.shard == ShardId(id))
        );
        assert!(
            got.warnings
                .iter()
                .all(|warning| !warning.to_string().is_empty())
        );
    }
    for n in [0, 1025] {
        assert_eq!(
            plan(&machine(&[], "0", None), &shards(n)),
            Err(PlanError::Shards(n))
        );
    }
}

fn ask(shards: Option<usize>, cpus: &str, numa: Numa) -> Ask {
    Ask {
        shards,
        cpus: (!cpus.is_empty()).then(|| list(cpus)),
        numa,
        pin: None,
    }
}

fn cores_of(machine: &Machine, ask: &Ask) -> String {
    plan(machine, ask).map_or_else(|why| why.to_string(), |plan| plan.cores())
}

/// Two nodes of four cores of two threads; 8 nodes of two cores of two threads, whose threads are numbered side by side.
// proves R-SHD-2, R-SHD-1
#[test]
fn shards_go_node_by_node_and_core_by_core() {
    let two = Tree::machine((2, 4, 2), spread).read();
    let eight = Tree::machine((8, 2, 2), |node, core, thread| node * 4 + core * 2 + thread).read();
    assert!(two.faults.is_empty() && eight.faults.is_empty());
    assert_eq!((two.nodes.len(), two.cores.len()), (2, 8));
    assert_eq!((eight.nodes.len(), eight.cores.len()), (8, 16));
    assert_eq!(two.nodes[1].memory_bytes, Some(64 << 30));
    let all = "0,2,1,3 of node 0, 4,6,5,7 of node 1, 8,10,9,11 of node 2, 12,14,13,15 of node 3, 16,18,17,19 of node 4, \
               20,22,21,23 of node 5, 24,26,25,27 of node 6, 28,30,29,31 of node 7";
    for (name, machine, ask, cores) in [
        (
            "two, all",
            &two,
            ask(None, "", Numa::Auto),
            "0,2,4,6,8,10,12,14 of node 0, 1,3,5,7,9,11,13,15 of node 1",
        ),
        (
            "two, 5",
            &two,
            ask(Some(5), "", Numa::Auto),
            "0,2,4,6,8 of node 0",
        ),
        (
            "two, the second",
            &two,
            ask(Some(3), "", Numa::Node(1)),
            "1,3,5 of node 1",
        ),
        (
            "a list of second threads",
            &two,
            ask(None, "8-11", Numa::Auto),
            "8,10 of node 0, 9,11 of node 1",
        ),
        (
            "first threads of what is listed",
            &two,
            ask(None, "0,8,2", Numa::Off),
            "0,2,8 of node 0",
        ),
        ("eight, all", &eight, ask(None, "", Numa::Auto), all),
        (
            "eight, 3",
            &eight,
            ask(Some(3), "", Numa::Off),
            "0,2,1 of node 0",
        ),
        (
            "eight, the last",
            &eight,
            ask(None, "", Numa::Node(7)),
            "28,30,29,31 of node 7",
        ),
        (
            "more shards than cores are spread, each within its node",
            &eight,
            ask(Some(10), "0-7", Numa::Auto),
            "not pinned within 0-3 of node 0, not pinned within 4-7 of node 1",
        ),
        (
            "and within the node asked",
            &two,
            ask(Some(9), "", Numa::Node(0)),
            "not pinned within 0,2,4,6,8,10,12,14 of node 0",
        ),
        (
            "and within the list",
            &two,
            ask(Some(3), "0,2", Numa::Off),
            "not pinned within 0,2 of node 0",
        ),
        (
            "and left to the kernel",
            &two,
            ask(Some(17), "", Numa::Off),
            "not pinned",
        ),
        (
            "a list over nodes",
            &eight,
            ask(None, "3-4", Numa::Off),
            "cpus: the list spans memory nodes [0, 1]; say --numa auto to spread over them",
        ),
        (
            "no such node",
            &eight,
            ask(None, "", Numa::Node(8)),
            "numa: node 8 has no core that this process may use",
        ),
    ] {
        assert_eq!(cores_of(machine, &ask), cores, "{name}");
        for place in plan(machine, &ask)
            .map(|plan| plan.places)
            .unwrap_or_default()
        {
            assert_eq!(place.memory, place.node, "{name}: memory is of the node");
            let run = place
                .cpu
                .into_iter()
                .chain(place.within.iter().flat_map(|l| l.ids().to_vec()));
            assert!(
                run.into_iter()
                    .all(|cpu| machine.node_of(cpu) == place.node),
                "{name}"
            );
        }
    }
    let spread = plan(&eight, &ask(Some(10), "0-7", Numa::Auto)).unwrap();
    let on = |node| {
        spread
            .places
            .iter()
            .filter(|place| place.node == Some(node))
            .count()
    };
    assert_eq!((on(0), on(1)), (5, 5));
}

/// One node: nothing to bind.
// proves R-SHD-2
#[test]
fn memory_is_bound_where_there_is_a_choice() {
    let one = Tree::machine((1, 2, 1), |_, core, _| core).read();
    let memory: Vec<_> = plan(&one, &Ask::default())
        .unwrap()
        .places
        .iter()
        .map(|p| (p.node, p.memory))
        .collect();
    assert_eq!(memory, [(Some(0), None); 2]);
}

// proves R-SHD-2
#[test]
fn offline_cores_and_cpusets_narrow_the_plan() {
    let tree = Tree::machine((2, 4, 2), spread);
    // The second threads of node 1 and one core of node 0 are off, and the kernel tells all of it.
    tree.put("sys/devices/system/cpu/online", b"0-5,7-8,10,12\n");
    tree.put("sys/devices/system/cpu/offline", b"6,9,11,13-15\n");
    tree.put("sys/devices/system/node/node0/cpulist", b"0,2,4,8,10,12\n");
    tree.put("sys/devices/system/node/node1/cpulist", b"1,3,5,7\n");
    for cpu in [1, 3, 5, 7] {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
        tree.put(&file, format!("{cpu}\n").as_bytes());
    }
    tree.put("proc/self/status", b"Cpus_allowed_list:\t0-5,7-8,10,12\n");
    let machine = tree.read();
    assert_eq!(machine.offline, Some(list("6,9,11,13-15")));
    assert_eq!(machine.cores.len(), 7);
    let all = "0,2,4,8,10,12 of node 0, 1,3,5,7 of node 1";
    assert_eq!(cores_of(&machine, &ask(None, "", Numa::Auto)), all);
    assert_eq!(
        cores_of(&machine, &ask(None, "6", Numa::Off)),
        "cpus: core 6 is not in the process's affinity mask"
    );

    // A container: the mask has the cpuset in it already.
    tree.put("proc/self/status", b"Cpus_allowed_list:\t0,2,8\n");
    tree.put("proc/self/cgroup", b"0::/\n");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", b"0,2,8\n");
    tree.put("sys/fs/cgroup/cpu.max", b"150000 100000\n");
    tree.put("sys/fs/cgroup/memory.max", b"1073741824\n");
    let machine = tree.read();
    assert_eq!(
        (machine.cgroup.quota, machine.quota_cpus),
        (Some(1.5), Some(2))
    );
    assert_eq!(
        (machine.cgroup.cpuset.clone(), machine.cgroup.memory_bytes),
        (Some(list("0,2,8")), Some(1 << 30))
    );
    assert_eq!(
        cores_of(&machine, &Ask::default()),
        "not pinned of node 0",
        "a quota, and no list"
    );
    assert_eq!(
        cores_of(&machine, &ask(None, "0,8", Numa::Off)),
        "0,8 of node 0"
    );

    // Nobody tells the mask: what is online and in the cpuset, version 1.
    tree.remove("proc/self/status");
    tree.put(
        "proc/self/cgroup",
        b"3:cpuset:/docker/x\n4:memory:/docker/x\n0::/\n",
    );
    tree.remove("sys/fs/cgroup/cpuset.cpus.effective");
    tree.put("sys/fs/cgroup/cpuset/docker/x/cpuset.cpus", b"4-6\n");
    tree.put("sys/fs/cgroup/cpuset/cpuset.cpus", b"0-15\n");
    tree.put(
        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
        b"9223372036854771712\n",
    );
    let machine = tree.read();
    assert_eq!(
        (machine.cpus, machine.cgroup.cpuset),
        (list("4-5"), Some(list("4-6")))
    );
}

/// Files that are not there are no fault, and what is odd is named; either way there is a plan.
// proves R-SHD-2, R-CLI-7
#[test]
fn missing_and_odd_files_leave_a_plan() {
    let nothing = Tree::new(&[("proc/self/status", "Cpus_allowed_list:\t0-1\n")]).read();
    assert_eq!(
        (
            nothing.online.clone(),
            nothing.nodes.len(),
            nothing.cores.len()
        ),
        (None, 0, 0)
    );
    assert!(nothing.faults.is_empty());
    assert_eq!(cores_of(&nothing, &Ask::default()), "0,1");
    assert_eq!(cores_of(&nothing, &ask(None, "", Numa::Auto)), "0,1");
    let why = Machine::below(&Tree::new(&[("x", "")]).0).unwrap_err();
    assert!(why.to_string().contains("affinity mask"), "{why}");

    let status = "Name:\tx\nCpus_allowed_list:\t0-15\n";
    for (file, bytes) in [
        ("sys/devices/system/cpu/online", &b"many\n"[..]),
        ("sys/devices/system/cpu/offline", b"0-"),
        (
            "sys/devices/system/cpu/cpu3/topology/core_cpus_list",
            b"\xff\xfe\x00",
        ),
        ("sys/devices/system/node/online", b"0-9999999999999\n"),
        ("sys/devices/system/node/node1/cpulist", b"3-1\n"),
        ("proc/self/cgroup", b"nonsense\n"),
        ("sys/fs/cgroup/cpu.max", b"\x00\x01"),
        ("sys/fs/cgroup/cpuset.cpus.effective", b"all of them"),
        ("sys/fs/cgroup/memory.max", b"-5"),
    ] {
        let tree = Tree::machine((2, 4, 2), spread);
        tree.put("proc/self/status", status.as_bytes());
        tree.put("proc/self/cgroup", b"0::/\n");
        tree.put(file, bytes);
        let machine = tree.read();
        let named: Vec<_> = machine
            .faults
            .iter()
            .map(|fault| fault.path.as_path())
            .collect();
        assert_eq!(named, [Path::new(file)]);
        assert!(machine.faults[0].to_string().starts_with(file));
        let shards = plan(&machine, &ask(None, "", Numa::Auto)).map(|plan| plan.places.len());
        assert_eq!(shards, Ok(16), "{file}");
        // A directory in its place.
        tree.remove(file);
        fs::create_dir_all(tree.0.join(file)).expect("made");
        assert_eq!(tree.read().faults.len(), 1, "{file}");
    }
    // The mask itself.
    let tree = Tree::machine((2, 4, 2), spread);
    tree.put("proc/self/status", b"Cpus_allowed_list:\tthese\n");
    let machine = tree.read();
    assert_eq!(
        (machine.cpus.to_string(), machine.faults.len()),
        ("0-15".to_owned(), 1)
    );
    // Siblings that do not name their own core count for nothing.
    tree.put(
        "sys/devices/system/cpu/cpu3/topology/core_cpus_list",
        b"0-2\n",
    );
    assert!(
        tree.read()
            .cores
            .iter()
            .all(|core| !core.ids().contains(&3))
            || tree.read().cores.len() == 8
    );
}

const INTERRUPTS: &str = "\
           CPU0       CPU1       CPU2
  1:          1          0          9  IO-APIC   1-edge      i8042
 16:          0          0          0  IO-APIC  16-fasteoi   eth0, ehci_hcd:usb1
 33:       5000          0          1  IR-PCI-MSI-0000:81:00.0    0-edge      eth0-TxRx-0
 34:          0       7000          1  IR-PCI-MSI-0000:81:00.0    1-edge      eth0-TxRx-1
 35:          0          0          1  IR-PCI-MSI-0000:82:00.0    0-edge      eth01-TxRx-0
 36:          0          0          1  IR-PCI-MSI-0000:83:00.0    0-edge      mlx5_comp0@pci:0000:83:00.0
 38:          0      53160          0  PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:      45899          0          0  PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0
NMI:          0          0          0   Non-maskable interrupts
ERR:          0
 40:
";

// proves R-CLI-7
#[test]
fn cards_have_queues_and_interrupts() {
    let tree = Tree::new(&[
        ("proc/interrupts", INTERRUPTS),
        ("sys/class/net/lo/queues/rx-0/x", ""),
        ("sys/class/net/eth0/queues/rx-0/x", ""),
        ("sys/class/net/eth0/queues/rx-1/x", ""),
        ("sys/class/net/eth0/queues/tx-0/x", ""),
        ("sys/class/net/eth0/device/numa_node", "1\n"),
        ("sys/class/net/eth0/device/msi_irqs/33", "msix\n"),
        ("sys/class/net/eth0/device/msi_irqs/34", "msix\n"),
        ("sys/class/net/eth0/device/msi_irqs/99", "msix\n"),
        ("sys/class/net/eth0/device/msi_irqs/no", "msix\n"),
        ("proc/irq/33/smp_affinity_list", "0-2\n"),
        ("proc/irq/33/effective_affinity_list", "0\n"),
        ("proc/irq/34/smp_affinity_list", "1\n"),
        ("sys/class/net/ib0/device/msi_irqs/36", "msix\n"),
        ("sys/class/net/ib0/device/numa_node", "-1\n"),
        ("sys/class/net/veth0/queues/rx-0/x", ""),
        ("sys/class/net/odd/device/numa_node", "left\n"),
        ("proc/irq/36/smp_affinity_list", "everywhere\n"),
        ("sys/devices/pci/virtio2/x", ""),
        ("sys/devices/pci/numa_node", "0\n"),
    ]);
    let net = tree.0.join("sys/class/net");
    fs::create_dir_all(net.join("ens3")).expect("made");
    std::os::unix::fs::symlink("../../../devices/pci/virtio2", net.join("ens3/device"))
        .expect("linked");
    let (nics, faults) = nics(&tree.0);
    let irq = |number, action: &str, allowed: &str, effective: &str| Irq {
        number,
        action: action.to_owned(),
        allowed: allowed.parse().ok(),
        effective: effective.parse().ok(),
    };
    let expected = [
        (
            "ens3",
            Some(0),
            0,
            0,
            vec![
                irq(38, "virtio2-input.0", "", ""),
                irq(39, "virtio2-output.0", "", ""),
            ],
        ),
        (
            "eth0",
            Some(1),
            2,
            1,
            vec![
                irq(16, "eth0, ehci_hcd:usb1", "", ""),
                irq(33, "eth0-TxRx-0", "0-2", "0"),
                irq(34, "eth0-TxRx-1", "1", ""),
                irq(99, "", "", ""),
            ],
        ),
        (
            "ib0",
            None,
            0,
            0,
            vec![irq(36, "mlx5_comp0@pci:0000:83:00.0", "", "")],
        ),
        ("odd", None, 0, 0, vec![]),
        ("veth0", None, 1, 0, vec![]),
    ];
    let expected = expected.map(|(name, node, receive_queues, send_queues, irqs)| Nic {
        name: name.to_owned(),
        node,
        receive_queues,
        send_queues,
        irqs,
    });
    assert_eq!(nics, expected);
    let odd: Vec<_> = faults
        .iter()
        .map(|fault| fault.path.to_string_lossy())
        .collect();
    assert_eq!(
        odd,
        [
            "proc/irq/36/smp_affinity_list",
            "sys/class/net/odd/device/numa_node"
        ]
    );
    assert_eq!(
        super::network::nics(&tree.0.join("nowhere")),
        (vec![], vec![])
    );
}
