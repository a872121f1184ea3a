package wire_test

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"remuda/device-plugin/gms/wire"
)

func ptr[T any](v T) *T { return &v }

// rows are all messages of the protocol with every field set, and with none.
var rows = []wire.Message{
	&wire.HandshakeRequest{LockType: wire.Auto, TimeoutMS: ptr(int64(-5)), ExpectedNonce: "n"},
	&wire.HandshakeRequest{},
	&wire.HandshakeResponse{Success: true, Committed: true, GrantedLockType: wire.RO, Nonce: "n", MemoryLayoutHash: "h"},
	&wire.HandshakeResponse{Nonce: "n", Error: "too late", Code: wire.CodeTimeout},
	&wire.GetRuntimeStateRequest{},
	&wire.GetRuntimeStateResponse{State: wire.StateRO, HasRWSession: true, ROSessionCount: 300, WaitingWriters: 2, Committed: true, IsReady: true, AllocationCount: 70000, MemoryLayoutHash: "h", LayoutCommitted: true, Nonce: "n"},
	&wire.GetEventHistoryRequest{},
	&wire.GetEventHistoryResponse{Events: []wire.Event{{Kind: wire.EventCleared, AllocationCount: 7}, {Kind: wire.EventCommitted}}},
	&wire.GetEventHistoryResponse{Events: []wire.Event{}},
	&wire.ErrorResponse{Error: "no", Code: wire.ErrorNotFound},
	&wire.AllocateRequest{Size: math.MinInt64, Tag: strings.Repeat("t", 70000)},
	&wire.AllocateResponse{AllocationID: "a", Size: 1, AlignedSize: 1 << 40, LayoutSlot: 3},
	&wire.ExportAllocationRequest{AllocationID: "a"},
	&wire.ExportAllocationResponse{AllocationID: "a", Size: 1, AlignedSize: 2, Tag: "", LayoutSlot: 0},
	&wire.GetAllocationRequest{AllocationID: strings.Repeat("i", 200)},
	&wire.GetAllocationResponse{AllocationID: "a", Size: 1, AlignedSize: 2, Tag: "x", LayoutSlot: 9},
	&wire.ListAllocationsRequest{},
	&wire.ListAllocationsRequest{Tag: ptr("")},
	&wire.ListAllocationsResponse{Allocations: []wire.GetAllocationResponse{}},
	&wire.ListAllocationsResponse{Allocations: make([]wire.GetAllocationResponse, 70000)},
	&wire.FreeAllocationRequest{AllocationID: "a"},
	&wire.FreeAllocationResponse{Success: true},
	&wire.MetadataPutRequest{Key: "ключ", AllocationID: "a", OffsetBytes: math.MaxInt64, Value: bytes.Repeat([]byte{0xff}, 300)},
	&wire.MetadataPutRequest{Value: bytes.Repeat([]byte{0}, 70000)},
	&wire.MetadataPutResponse{Success: true},
	&wire.MetadataGetRequest{Key: "k"},
	&wire.MetadataGetResponse{Found: true, AllocationID: "a", OffsetBytes: 4, Value: []byte{}},
	&wire.MetadataDeleteRequest{Key: "k"},
	&wire.MetadataDeleteResponse{},
	&wire.MetadataListRequest{Prefix: "p"},
	&wire.MetadataListResponse{Keys: []string{"a", "b"}},
	&wire.GetMemoryLayoutHashRequest{},
	&wire.GetMemoryLayoutHashResponse{MemoryLayoutHash: "h"},
	&wire.GetLockStateRequest{},
	&wire.GetLockStateResponse{State: wire.StateEmpty, LayoutCommitted: true},
	&wire.GetAllocationStateRequest{},
	&wire.GetAllocationStateResponse{AllocationCount: 1},
	&wire.CommitRequest{},
	&wire.CommitResponse{Success: true},
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for _, m := range rows {
		body, err := wire.Encode(m)
		require.NoError(t, err)
		back, err := wire.Decode(body)
		require.NoError(t, err, "%s", m.MessageType())
		require.Equal(t, m, back)
	}
}

// TestMessagesAreWhatAnotherLibraryReads: the names and types of the protocol page.
func TestMessagesAreWhatAnotherLibraryReads(t *testing.T) {
	element := map[string]any{"type": "get_allocation_response", "allocation_id": "a", "size": int8(1), "aligned_size": int8(2), "tag": "x", "layout_slot": int8(9)}
	for _, c := range []struct {
		message wire.Message
		want    map[string]any
	}{
		{&wire.HandshakeResponse{}, map[string]any{"type": "handshake_response", "success": false, "committed": false, "granted_lock_type": nil, "nonce": "", "memory_layout_hash": ""}},
		{&wire.HandshakeResponse{Success: true, GrantedLockType: wire.RW, Nonce: "n"}, map[string]any{"type": "handshake_response", "success": true, "committed": false, "granted_lock_type": "rw", "nonce": "n", "memory_layout_hash": ""}},
		{&wire.HandshakeRequest{LockType: wire.RW}, map[string]any{"type": "handshake_request", "lock_type": "rw", "timeout_ms": nil}},
		{&wire.ErrorResponse{Error: "no"}, map[string]any{"type": "error_response", "error": "no", "code": int8(0)}},
		{&wire.GetEventHistoryResponse{}, map[string]any{"type": "get_event_history_response", "events": []any{}}},
		{&wire.GetEventHistoryResponse{Events: []wire.Event{{Kind: "committed"}}}, map[string]any{"type": "get_event_history_response", "events": []any{map[string]any{"kind": "committed", "allocation_count": int8(0)}}}},
		{&wire.ListAllocationsResponse{}, map[string]any{"type": "list_allocations_response", "allocations": []any{}}},
		{&wire.ListAllocationsResponse{Allocations: []wire.GetAllocationResponse{{AllocationID: "a", Size: 1, AlignedSize: 2, Tag: "x", LayoutSlot: 9}}}, map[string]any{"type": "list_allocations_response", "allocations": []any{element}}},
		{&wire.ListAllocationsRequest{}, map[string]any{"type": "list_allocations_request", "tag": nil}},
		{&wire.MetadataGetResponse{}, map[string]any{"type": "metadata_get_response", "found": false, "allocation_id": "", "offset_bytes": int8(0), "value": []byte{}}},
		{&wire.MetadataListResponse{}, map[string]any{"type": "metadata_list_response", "keys": []any{}}},
		{&wire.AllocateResponse{AllocationID: "a", Size: math.MaxUint64, AlignedSize: 1 << 31, LayoutSlot: 1 << 15}, map[string]any{"type": "allocate_response", "allocation_id": "a", "size": uint64(math.MaxUint64), "aligned_size": uint32(1 << 31), "layout_slot": uint16(1 << 15)}},
		{&wire.MetadataPutRequest{OffsetBytes: -40000}, map[string]any{"type": "metadata_put_request", "key": "", "allocation_id": "", "offset_bytes": int32(-40000), "value": []byte{}}},
	} {
		body, err := wire.Encode(c.message)
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, msgpack.Unmarshal(body, &got))
		require.Equal(t, c.want, got)
	}
}

// TestIntegersOfEveryWidth: encoders choose the width.
func TestIntegersOfEveryWidth(t *testing.T) {
	for _, v := range []any{int8(-1), int8(5), int16(-300), int32(-70000), int64(math.MinInt64), uint8(200), uint16(60000), uint32(1 << 31), uint64(1 << 62), int64(math.MaxInt64)} {
		body, err := msgpack.Marshal(map[string]any{"type": "handshake_request", "lock_type": "rw", "timeout_ms": v})
		require.NoError(t, err)
		m, err := wire.Decode(body)
		require.NoError(t, err)
		want := reflect.ValueOf(v)
		n := int64(0)
		if want.CanInt() {
			n = want.Int()
		} else {
			n = int64(want.Uint())
		}
		require.Equal(t, n, *m.(*wire.HandshakeRequest).TimeoutMS)
	}
}

func TestMissingFieldsHaveTheirDefaults(t *testing.T) {
	for _, c := range []struct {
		body map[string]any
		want wire.Message
	}{
		{map[string]any{"type": "allocate_request", "size": 1}, &wire.AllocateRequest{Size: 1, Tag: wire.DefaultTag}},
		{map[string]any{"type": "allocate_request", "size": 1, "tag": ""}, &wire.AllocateRequest{Size: 1}},
		{map[string]any{"type": "metadata_list_request"}, &wire.MetadataListRequest{}},
		{map[string]any{"type": "list_allocations_request"}, &wire.ListAllocationsRequest{}},
		{map[string]any{"type": "handshake_request", "lock_type": "ro"}, &wire.HandshakeRequest{LockType: wire.RO}},
		{map[string]any{"type": "handshake_request", "lock_type": "ro", "timeout_ms": nil, "expected_nonce": nil}, &wire.HandshakeRequest{LockType: wire.RO}},
		{map[string]any{"type": "handshake_response", "success": true, "committed": true}, &wire.HandshakeResponse{Success: true, Committed: true}},
		{map[string]any{"type": "error_response", "error": "x"}, &wire.ErrorResponse{Error: "x"}},
		{map[string]any{"type": "get_event_history_response", "events": []any{map[string]any{"kind": "x", "more": 5}}}, &wire.GetEventHistoryResponse{Events: []wire.Event{{Kind: "x"}}}},
		{map[string]any{"type": "commit_request", "unknown": map[string]any{"type": []any{1.5, nil, []byte{1}, map[string]any{}}}}, &wire.CommitRequest{}},
	} {
		body, err := msgpack.Marshal(c.body)
		require.NoError(t, err)
		m, err := wire.Decode(body)
		require.NoError(t, err, "%v", c.body)
		require.Equal(t, c.want, m)
	}
}

func TestBadFieldsAreNamed(t *testing.T) {
	for _, c := range []struct {
		body map[string]any
		want string
	}{
		{map[string]any{"type": "allocate_request"}, `allocate_request: field "size": it is missing`},
		{map[string]any{"type": "allocate_request", "size": nil}, `allocate_request: field "size": must be an integer, got nil`},
		{map[string]any{"type": "allocate_request", "size": "1"}, `allocate_request: field "size": must be an integer, got a string`},
		{map[string]any{"type": "allocate_request", "size": 1.0}, `allocate_request: field "size": must be an integer, got a float`},
		{map[string]any{"type": "allocate_request", "size": uint64(math.MaxUint64)}, `allocate_request: field "size": the integer is out of range`},
		{map[string]any{"type": "allocate_request", "size": 1, "tag": nil}, `allocate_request: field "tag": must be a string, got nil`},
		{map[string]any{"type": "allocate_request", "size": 1, "tag": []byte("x")}, `allocate_request: field "tag": must be a string, got bytes`},
		{map[string]any{"type": "allocate_request", "size": 1, "tag": "\xff"}, `allocate_request: field "tag": the string is not UTF-8`},
		{map[string]any{"type": "metadata_put_request", "key": "k", "allocation_id": "a", "offset_bytes": 0, "value": "text"}, `metadata_put_request: field "value": must be bytes, got a string`},
		{map[string]any{"type": "get_allocation_state_response", "allocation_count": -1}, `get_allocation_state_response: field "allocation_count": the integer is out of range`},
		{map[string]any{"type": "handshake_response", "success": 1, "committed": true}, `handshake_response: field "success": must be a bool, got an integer`},
		{map[string]any{"type": "metadata_list_response", "keys": "k"}, `metadata_list_response: field "keys": must be a list, got a string`},
		{map[string]any{"type": "metadata_list_response", "keys": []any{1}}, `metadata_list_response: field "keys": must be a string, got an integer`},
		{map[string]any{"type": "list_allocations_response", "allocations": []any{1}}, `list_allocations_response: field "allocations": must be a map, got an integer`},
		{map[string]any{"lock_type": "rw"}, `message: field "type": must be a string, got none`},
		{map[string]any{"type": 7}, `message: field "type": must be a string, got none`},
		{map[string]any{"type": []byte("commit_request")}, `message: field "type": must be a string, got none`},
		{map[string]any{"type": "no_such_request"}, `unknown message type "no_such_request"`},
	} {
		body, err := msgpack.Marshal(c.body)
		require.NoError(t, err)
		_, err = wire.Decode(body)
		require.EqualError(t, err, c.want)
		require.True(t, wire.Refusable(err))
	}
}

func TestMalformedBodiesEndTheConnection(t *testing.T) {
	commit, err := wire.Encode(&wire.CommitRequest{})
	require.NoError(t, err)
	deep := append([]byte{0x82, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 100)...)
	deep = append(append(deep, 0xc0), commit[1:]...)
	for name, body := range map[string][]byte{
		"empty": {}, "nil": {0xc0}, "a list": {0x90}, "a string": {0xa1, 'x'},
		"cut short":            commit[:len(commit)-1],
		"trailing bytes":       append(bytes.Clone(commit), 0xc0),
		"a map of 4 billion":   {0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1, 'x', 0},
		"bytes of 4 GiB":       {0x81, 0xa4, 't', 'y', 'p', 'e', 0xc6, 0xff, 0xff, 0xff, 0xff},
		"a list of 4 billion":  append([]byte{0x82, 0xa1, 'x', 0xdd, 0xff, 0xff, 0xff, 0xff}, commit[1:]...),
		"an unused byte":       append([]byte{0x82, 0xa1, 'x', 0xc1}, commit[1:]...),
		"a number as a key":    append([]byte{0x82, 5, 5}, commit[1:]...),
		"nested too deep":      deep,
		"an extension cut off": {0x81, 0xa1, 'x', 0xd8, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := wire.Decode(body)
			require.ErrorIs(t, err, wire.ErrMalformed)
			require.False(t, wire.Refusable(err))
		})
	}
}

// FuzzDecode feeds the decoder anything. What it takes must come back from the
// encoder as the same message, and another library must read it too.
func FuzzDecode(f *testing.F) {
	for _, m := range rows {
		if body, err := wire.Encode(m); err == nil && len(body) < 4096 {
			f.Add(body)
		}
	}
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x81, 0xa4, 't', 'y', 'p', 'e', 0xc6, 0xff, 0xff, 0xff, 0xff})
	f.Add(bytes.Repeat([]byte{0x91}, 200))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := wire.Decode(body)
		if err != nil {
			if !wire.Refusable(err) {
				require.ErrorIs(t, err, wire.ErrMalformed)
			}
			return
		}
		again, err := wire.Encode(m)
		require.NoError(t, err)
		back, err := wire.Decode(again)
		require.NoError(t, err)
		require.Equal(t, normal(m), normal(back))
		var other map[string]any
		require.NoError(t, msgpack.Unmarshal(again, &other))
		require.Equal(t, m.MessageType(), other["type"])
	})
}

// normal tells no nil list from an empty one: a list that is missing is read as
// nil, and written as an empty one.
func normal(m wire.Message) wire.Message {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice && f.IsNil() {
			f.Set(reflect.MakeSlice(f.Type(), 0, 0))
		}
	}
	return m
}
