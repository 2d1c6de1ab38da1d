//! `topology`: this machine, machines made of files, and plans that are refused.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::child::run;
use crate::files::fleet_file;
use crate::serve::FLEET;

/// Two nodes of two cores of two threads, one card, a quota, and an odd file.
fn two_nodes(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("topology")
        .join(name);
    let mut files = vec![
        (
            "proc/self/status".to_owned(),
            "Cpus_allowed_list:\t0-7\n".to_owned(),
        ),
        ("proc/self/cgroup".to_owned(), "0::/pod\n".to_owned()),
        (
            "sys/fs/cgroup/pod/cpu.max".to_owned(),
            "600000 100000\n".to_owned(),
        ),
        (
            "sys/fs/cgroup/pod/memory.max".to_owned(),
            "8589934592\n".to_owned(),
        ),
        ("sys/fs/cgroup/memory.max".to_owned(), "much\n".to_owned()),
        (
            "sys/devices/system/cpu/online".to_owned(),
            "0-7\n".to_owned(),
        ),
        (
            "sys/devices/system/cpu/offline".to_owned(),
            "8-9\n".to_owned(),
        ),
        (
            "sys/devices/system/node/online".to_owned(),
            "0-1\n".to_owned(),
        ),
        (
            "sys/devices/system/node/node0/cpulist".to_owned(),
            "0-1,4-5\n".to_owned(),
        ),
        (
            "sys/devices/system/node/node1/cpulist".to_owned(),
            "2-3,6-7\n".to_owned(),
        ),
        ("sys/class/net/eth0/queues/rx-0/x".to_owned(), String::new()),
        ("sys/class/net/eth0/queues/tx-0/x".to_owned(), String::new()),
        (
            "sys/class/net/eth0/device/numa_node".to_owned(),
            "1\n".to_owned(),
        ),
        (
            "proc/interrupts".to_owned(),
            " 33: 1 2 PCI-MSI 1-edge eth0-TxRx-0\n".to_owned(),
        ),
        (
            "proc/irq/33/smp_affinity_list".to_owned(),
            "2-3\n".to_owned(),
        ),
    ];
    for cpu in 0..8 {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
        files.push((file, format!("{},{}\n", cpu % 4, cpu % 4 + 4)));
    }
    for (file, text) in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a file in a directory")).expect("made");
        fs::write(path, text).expect("written");
    }
    root
}

// proves R-CLI-7, R-SHD-2
#[test]
fn a_machine_and_its_plan_are_shown() {
    let root = two_nodes("shown");
    let root = root.to_str().expect("a path in UTF-8");
    let shown = run(&[
        "topology", "--root", root, "--numa", "auto", "--cpus", "0-7",
    ]);
    assert_eq!((shown.code, &shown.err[..]), (Some(0), ""));
    let expected = "\
cores      0-7 usable, 0-7 online, 8-9 offline
threads    up to 2 a core: 0,4 1,5 2,6 3,7
node 0     cores 0-1,4-5
node 1     cores 2-3,6-7
cgroup     CPU quota 6.00 cores, memory 8.0 GiB
eth0       1 receive and 1 send queues, node 1
           irq 33 eth0-TxRx-0: cores 2-3
plan       6 shards, cores 0,1,4,5 of node 0, 2,3 of node 1
           shard 0: core 0, node 0 and its memory
           shard 1: core 1, node 0 and its memory
           shard 2: core 4, node 0 and its memory
           shard 3: core 5, node 0 and its memory
           shard 4: core 2, node 1 and its memory
           shard 5: core 3, node 1 and its memory
odd file   sys/fs/cgroup/memory.max: `much` is no number of bytes
";
    assert_eq!(shown.out, expected);

    let file = FLEET.replace(
        "\"serving\"",
        "\"runtime\": {\"shards\": 2, \"numa\": 1}, \"serving\"",
    );
    let fleet = fleet_file("topology", "json", &file);
    let fleet = fleet.to_str().expect("a path in UTF-8");
    let shown = run(&[
        "topology", "--json", "--root", root, "--fleet", fleet, "--cpus", "2-7",
    ]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
    let place = |shard, cpu| json!({"shard": shard, "cpu": cpu, "within": null, "node": 1, "memory_node": 1});
    let cases = [
        ("/schema", json!("narwhal.topology")),
        ("/schema_version", json!(1)),
        ("/cpus/offline", json!([8, 9])),
        ("/cpus/cores/0", json!([0, 4])),
        (
            "/nodes/1",
            json!({"node": 1, "cpus": [2, 3, 6, 7], "memory_bytes": null}),
        ),
        (
            "/cgroup",
            json!({"quota_cpus": 6.0, "cpuset": null, "memory_bytes": 8_589_934_592_u64}),
        ),
        ("/nics/0/irqs/0/allowed", json!([2, 3])),
        ("/plan", json!([place(0, 2), place(1, 3)])),
        ("/warnings", json!([])),
        ("/refused", Value::Null),
        ("/odd/0/file", json!("sys/fs/cgroup/memory.max")),
    ];
    for (pointer, expected) in cases {
        assert_eq!(shown.pointer(pointer), Some(&expected), "{pointer}");
    }
}

// proves R-CLI-7, R-SHD-2
#[test]
fn a_plan_that_serve_would_refuse_ends_as_serve_would() {
    let root = two_nodes("refused");
    let root = root.to_str().expect("a path in UTF-8");
    for (args, why) in [
        (&["--cpus", "1-2"][..], "the list spans memory nodes [0, 1]"),
        (
            &["--cpus", "9"],
            "core 9 is not in the process's affinity mask",
        ),
        (
            &["--cpus", "4000"],
            "core 4000 is not in the process's affinity mask",
        ),
        (
            &["--numa", "2"],
            "node 2 has no core that this process may use",
        ),
        (&["--shards", "0"], "shards: 0 is outside 1 to 1024"),
    ] {
        let ended = run(&[&["topology", "--root", root], args].concat());
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
        assert!(ended.out.contains("plan       refused: "), "{}", ended.out);
        assert!(
            ended.out.starts_with("cores      0-7 usable"),
            "the machine is shown: {}",
            ended.out
        );
    }
    for args in [
        &["--numa", "on"][..],
        &["--cpus", "3-1"],
        &["--fleet", "/nowhere/f.json"],
    ] {
        let ended = run(&[&["topology", "--root", root], args].concat());
        assert_eq!((ended.code, &ended.out[..]), (Some(2), ""), "{args:?}");
    }
    let ended = run(&["topology", "--root", "/nowhere"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("proc/self/status"), "{}", ended.err);
}

// proves R-CLI-7
#[test]
fn this_machine_has_a_plan() {
    let text = run(&["topology"]);
    assert_eq!(text.code, Some(0), "{}", text.err);
    let shown = run(&["topology", "--json"]);
    let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
    let usable = shown["cpus"]["usable"].as_array().map_or(0, Vec::len);
    let shards = shown["plan"].as_array().map_or(0, Vec::len);
    assert!(usable > 0 && (1..=usable).contains(&shards), "{shown}");
    assert!(
        text.out.contains(&format!("plan       {shards} shards")),
        "{}",
        text.out
    );
}
