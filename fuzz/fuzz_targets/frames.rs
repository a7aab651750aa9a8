//! Frames of the control protocol and of the page wire, of arbitrary bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc::{FRAME_HEADER_LEN, FrameHeader};
use shim_abi::wire::{FRAME_BYTES, GetPages, Hello, HelloReply, PageReply};

fuzz_target!(|input: &[u8]| {
    if let Some(header) = input.first_chunk::<FRAME_HEADER_LEN>()
        && let Ok(decoded) = FrameHeader::decode(*header)
    {
        assert_eq!(decoded.encode(), *header);
    }
    if let Some(frame) = input.first_chunk::<FRAME_BYTES>() {
        let _ = (Hello::decode(frame), HelloReply::decode(frame));
        if let Ok(request) = GetPages::decode(frame) {
            assert_eq!(GetPages::decode(&request.encode()), Ok(request));
        }
        if let Ok(reply) = PageReply::decode(frame) {
            assert_eq!(PageReply::decode(&reply.encode()), Ok(reply));
        }
    }
});
