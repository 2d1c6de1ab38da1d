//! Machines made of files, and the plans for them.

use std::sync::atomic::{AtomicU32, Ordering};

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
        assert_eq!(text.parse::<CpuList>().ok().map(|l| l.0), ids, "{text:?}");
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
        assert_eq!(quota_cpus(&tree.0), expected, "{name}");
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
