//! The trait's promises, on both drivers.

use super::*;
use crate::runtime::testing::both_drivers;

/// A connected pair over loopback, both ends on the trait.
async fn pair() -> ((Reader, Writer), (Reader, Writer)) {
    let listener = Monoio::listen(([127, 0, 0, 1], 0).into(), false, 16).unwrap();
    let dial = Monoio::connect(Monoio::local_addr(&listener).unwrap());
    let (near, far) = monoio::join!(dial, Monoio::accept(&listener));
    let (reader, writer, _) = far.unwrap();
    (near.unwrap(), (reader, writer))
}

// proves R-SHD-3
#[test]
fn echoes_and_appends() {
    both_drivers(|| async {
        let ((r, w), (fr, fw)) = pair().await;
        let (sent, _, w) = w.write_all(b"xxhello".to_vec(), 2).await;
        sent.unwrap();
        let mut buf = Vec::with_capacity(64);
        buf.extend_from_slice(b"> ");
        let (n, buf, fr) = fr.read(buf).await;
        assert_eq!((n.unwrap(), &buf[..]), (5, &b"> hello"[..]));
        let (sent, buf, fw) = fw.write_all(buf, 0).await;
        sent.unwrap();
        assert_eq!(buf, b"> hello");
        let (n, back, r) = r.read(Vec::with_capacity(64)).await;
        assert_eq!((n.unwrap(), &back[..]), (7, &b"> hello"[..]));
        drop((r, w, fr, fw));
    });
}
