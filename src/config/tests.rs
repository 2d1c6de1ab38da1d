use super::keys::KEYS;
#[test]
fn dump() {
    for k in KEYS {
        println!(
            "ROW\t{}\t{:?}\t{}\t{}",
            k.path,
            k.want,
            k.default(),
            k.comment()
        );
    }
}
