//! What one side writes the other side reads, and arbitrary bytes are survived.

use pg_proto::{
    BackendMessage, ErrorFields, FieldDescription, FrontendMessage, Inbox, RawMessage,
    ReplicationMessage, Severity, StandbyMessage, StartupPacket, TransactionStatus,
};
use pg_types::Lsn;
use proptest::prelude::*;

fn error_fields() -> impl Strategy<Value = ErrorFields> {
    let severity = prop::sample::select(vec![
        Severity::Error,
        Severity::Fatal,
        Severity::Panic,
        Severity::Notice,
    ]);
    (
        severity,
        "[0-9A-Z]{5}",
        "[^\\x00]{0,30}",
        any::<Option<u8>>(),
    )
        .prop_map(|(severity, code, message, detail)| ErrorFields {
            severity,
            code,
            message,
            detail: detail.map(|d| d.to_string()),
            hint: detail.map(|d| format!("hint {d}")),
        })
}

proptest! {
    #[test]
    fn backend_messages(
        error in error_fields(),
        name in "[^\\x00]{0,20}",
        value in "[^\\x00]{0,20}",
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        number in any::<u32>(),
    ) {
        let messages = [
            BackendMessage::AuthenticationOk,
            BackendMessage::AuthenticationRequest { method: 10 },
            BackendMessage::ParameterStatus { name: &name, value: &value },
            BackendMessage::BackendKeyData { process: number, secret: &bytes },
            BackendMessage::ReadyForQuery(TransactionStatus::Idle),
            BackendMessage::ReadyForQuery(TransactionStatus::InTransaction),
            BackendMessage::ReadyForQuery(TransactionStatus::Failed),
            BackendMessage::ErrorResponse(error.clone()),
            BackendMessage::NoticeResponse(error),
            BackendMessage::RowDescription(vec![
                FieldDescription::text(&name),
                FieldDescription::int4(&value),
                FieldDescription::int8(&value),
            ]),
            BackendMessage::DataRow(vec![Some(&bytes), None, Some(value.as_bytes())]),
            BackendMessage::CommandComplete(&value),
            BackendMessage::EmptyQueryResponse,
            BackendMessage::CopyBothResponse,
            BackendMessage::CopyOutResponse,
            BackendMessage::CopyInResponse,
            BackendMessage::CopyData(&bytes),
            BackendMessage::CopyDone,
            BackendMessage::Notification,
            BackendMessage::NegotiateProtocolVersion { minor: number },
        ];
        let mut inbox = Inbox::new(1 << 20);
        for message in &messages {
            let mut out = Vec::new();
            message.encode(&mut out);
            inbox.push(&out);
        }
        for message in &messages {
            let raw = inbox.next_message().unwrap().expect("a whole message");
            prop_assert_eq!(&BackendMessage::decode(raw).unwrap(), message);
        }
        prop_assert!(inbox.is_empty());
    }

    #[test]
    fn frontend_messages(text in "[^\\x00]{0,40}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let messages = [
            FrontendMessage::Query(&text),
            FrontendMessage::CopyData(&bytes),
            FrontendMessage::CopyDone,
            FrontendMessage::CopyFail(&text),
            FrontendMessage::Password(&bytes),
            FrontendMessage::Terminate,
            FrontendMessage::Unsupported { tag: b'P' },
        ];
        for message in &messages {
            let mut out = Vec::new();
            message.encode(&mut out);
            let mut inbox = Inbox::new(1 << 20);
            inbox.push(&out);
            let raw = inbox.next_message().unwrap().expect("a whole message");
            prop_assert_eq!(&FrontendMessage::decode(raw).unwrap(), message);
        }
    }

    #[test]
    fn startup_packets(
        parameters in prop::collection::vec(("[^\\x00]{1,20}", "[^\\x00]{0,20}"), 0..5),
        process in any::<u32>(),
        secret in any::<u32>(),
        minor in 0u16..3,
    ) {
        for packet in [
            StartupPacket::SslRequest,
            StartupPacket::GssEncRequest,
            StartupPacket::CancelRequest { process, secret },
            StartupPacket::Startup { minor, parameters },
        ] {
            let mut out = Vec::new();
            packet.encode(&mut out);
            let mut inbox = Inbox::new(1 << 20);
            inbox.push(&out);
            let body = inbox.next_startup().unwrap().expect("a whole packet");
            prop_assert_eq!(StartupPacket::decode(body).unwrap(), packet);
        }
    }

    #[test]
    fn replication_payloads(a in any::<u64>(), b in any::<u64>(), time in any::<i64>(), reply in any::<bool>(), data in prop::collection::vec(any::<u8>(), 0..100)) {
        for message in [
            ReplicationMessage::XLogData { start: Lsn(a), end: Lsn(b), time, data: &data },
            ReplicationMessage::Keepalive { end: Lsn(a), time, reply },
        ] {
            let mut out = Vec::new();
            message.encode(&mut out);
            prop_assert_eq!(ReplicationMessage::decode(&out).unwrap(), message);
        }
        let xmin = (a as u32, b as u32);
        for message in [
            StandbyMessage::Status { write: Lsn(a), flush: Lsn(b), apply: Lsn(a), time, reply },
            StandbyMessage::HotStandbyFeedback { time, xmin, catalog_xmin: (3, 4) },
        ] {
            let mut out = Vec::new();
            message.encode(&mut out);
            prop_assert_eq!(StandbyMessage::decode(&out).unwrap(), message);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(tag in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..200)) {
        let raw = RawMessage { tag, body: &body };
        let _ = BackendMessage::decode(raw);
        let _ = FrontendMessage::decode(raw);
        let _ = StartupPacket::decode(&body);
        let _ = ReplicationMessage::decode(&body);
        let _ = StandbyMessage::decode(&body);
    }
}
