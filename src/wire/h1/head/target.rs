//! What a request is aimed at: the path within a target, and what may name a host. RFC 9112 section 3.2.
//!
//! Owns nothing; pure functions over the bytes of one target or one Host value. Invariant: `start < end ≤ target.len()`.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::HeadFault;

/// The span of the path in a target without spaces or control bytes; query and fragment are left out.
pub(super) fn target_path(method: &str, target: &[u8]) -> Result<Range<usize>, HeadFault> {
    const BAD: HeadFault = HeadFault::Bad("malformed request target");
    if !target.is_ascii() {
        return Err(BAD);
    }
    let start = match target {
        [b'/', ..] => 0,
        [b'*'] if method == "OPTIONS" => return Ok(0..1),
        // Authority form names no path, so it will be an unknown route.
        _ if method == "CONNECT" && is_host(target) => return Ok(0..target.len()),
        _ => {
            let authority = authority(target).ok_or(BAD)?;
            if target.get(authority.end) != Some(&b'/') {
                // No path means `/`. The second slash of `://` stands in, so that a path is always bytes of the buffer.
                return Ok(authority.start - 1..authority.start);
            }
            authority.end
        }
    };
    let end = memchr2(b'?', b'#', &target[start..]).map_or(target.len(), |at| start + at);
    Ok(start..end)
}

/// The authority of an absolute target. It is not compared with Host: we serve one site, whatever it is called.
fn authority(target: &[u8]) -> Option<Range<usize>> {
    let colon = memchr(b':', target)?;
    let (scheme, rest) = target.split_at(colon);
    let known = scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https");
    let rest = rest.strip_prefix(b"://").filter(|_| known)?;
    let end = rest.iter().position(|byte| b"/?#".contains(byte));
    let authority = &rest[..end.unwrap_or(rest.len())];
    is_host(authority).then_some(colon + 3..colon + 3 + authority.len())
}

/// `uri-host [ ":" port ]` (RFC 9110 section 7.2), not empty. The comma, which RFC 3986 allows in a name, is refused: two Host
/// fields that some hop joined into one look like that. So is user information.
pub(super) fn is_host(value: &[u8]) -> bool {
    let (name_ok, rest) = if let [b'[', inner @ ..] = value {
        let Some(close) = memchr(b']', inner) else {
            return false;
        };
        let address = &inner[..close];
        let ok = address
            .iter()
            .all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
        (ok && !address.is_empty(), &inner[close + 1..])
    } else {
        let (name, rest) = value.split_at(memchr(b':', value).unwrap_or(value.len()));
        let ok = name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte));
        (ok && !name.is_empty(), rest)
    };
    name_ok
        && match rest {
            [] => true,
            [b':', port @ ..] => port.iter().all(u8::is_ascii_digit),
            _ => false,
        }
}
