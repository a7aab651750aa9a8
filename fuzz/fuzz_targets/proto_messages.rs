//! Arbitrary bytes as a stream of messages of either side.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_proto::{
    BackendMessage, FrontendMessage, Inbox, ReplicationMessage, StandbyMessage, StartupPacket,
};

fuzz_target!(|bytes: &[u8]| {
    let mut inbox = Inbox::new(1 << 16);
    inbox.push(bytes);
    while let Ok(Some(raw)) = inbox.next_message() {
        let _ = FrontendMessage::decode(raw);
        if let Ok(BackendMessage::CopyData(payload)) = BackendMessage::decode(raw) {
            let _ = ReplicationMessage::decode(payload);
            let _ = StandbyMessage::decode(payload);
        }
    }
    let mut inbox = Inbox::new(1 << 16);
    inbox.push(bytes);
    while let Ok(Some(body)) = inbox.next_startup() {
        let _ = StartupPacket::decode(body);
    }
});
