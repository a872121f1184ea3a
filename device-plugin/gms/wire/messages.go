package wire

// Message is one row of the protocol. Messages are pointers to the structs of
// this file.
type Message interface {
	// MessageType is the value of the key "type".
	MessageType() string
}

// LockType is what a client asks for, and what it is granted.
type LockType string

// The lock types. Auto gives RW if nothing is committed, else RO; it is never
// granted under that name.
const (
	RW   LockType = "rw"
	RO   LockType = "ro"
	Auto LockType = "auto"
)

// RWOrRO is Auto under the name that clients of most versions of Dynamo ask for it
// (lib/gpu_memory_service/common/protocol/messages.py of ai-dynamo/dynamo at 189393398bb0).
const RWOrRO LockType = "rw_or_ro"

// The states of a layout and its lock.
const (
	StateEmpty     = "EMPTY"
	StateRW        = "RW"
	StateCommitted = "COMMITTED"
	StateRO        = "RO"
)

// The kinds of events.
const (
	EventRWConnected = "rw_connected"
	EventCommitted   = "committed"
	EventRWAborted   = "rw_aborted"
	EventCleared     = "allocations_cleared"
	EventOOM         = "allocation_oom"
)

// DefaultTag is the tag of an allocation whose request names none.
const DefaultTag = "default"

// Why a handshake was refused (an extension; Dynamo's clients know success only).
const (
	// CodeFailed: the service could not do what the lock needs.
	CodeFailed = "failed"
	// CodeInUse: others use the unit, and IfUnused was set.
	CodeInUse = "in_use"
	// CodeTimeout: the lock was not free in time.
	CodeTimeout = "timeout"
	// CodeRestarted: the server is another incarnation than the client expected.
	CodeRestarted = "restarted"
	// CodeBadRequest: the request makes no sense.
	CodeBadRequest = "bad_request"
)

// Codes of an error_response. They are integers because Dynamo's clients take
// nothing else there.
const (
	// ErrorOther: the server could not do it; its text says why.
	ErrorOther = 0
	// ErrorBadRequest: a field has a bad type or value.
	ErrorBadRequest = 1
	// ErrorNotAllowed: the session's mode, or the place in the conversation, does
	// not allow the request.
	ErrorNotAllowed = 2
	// ErrorNotFound: there is no such allocation.
	ErrorNotFound = 3
	// ErrorOutOfMemory: the GPU has no room, and waiting was no use.
	ErrorOutOfMemory = 4
)

// The first message of a connection.
type (
	// OpenUnitRequest (extension) is the first message on the node's socket: from its
	// answer on, the connection is one of the unit of a GPU and a tag, which is made if
	// need be.
	OpenUnitRequest struct {
		GPU string `msg:"gpu"`
		Tag string `msg:"tag"`
		// Group names those to whom the connection belongs, as a failover pair with its
		// shims: for HandshakeRequest.IfUnused they are one. Empty: it is on its own.
		Group string `msg:"group,omit"`
	}
	// OpenUnitResponse answers it.
	OpenUnitResponse struct{}

	// HandshakeRequest opens a session.
	HandshakeRequest struct {
		LockType LockType `msg:"lock_type"`
		// TimeoutMS is how long to wait for the lock, nil for ever, 0 or less for
		// one try.
		TimeoutMS *int64 `msg:"timeout_ms"`
		// ExpectedNonce (extension) is the incarnation that the client knows.
		ExpectedNonce string `msg:"expected_nonce,omit"`
		// IfUnused (extension) is for a writer: it is granted the lock only if no
		// connection of another group uses the unit, and does not wait.
		IfUnused bool `msg:"if_unused,omit"`
	}
	// HandshakeResponse answers it. Without success the server closes.
	HandshakeResponse struct {
		Success         bool     `msg:"success"`
		Committed       bool     `msg:"committed"`
		GrantedLockType LockType `msg:"granted_lock_type,nil"`
		// Nonce (extension) names the server's incarnation.
		Nonce string `msg:"nonce,optional"`
		// MemoryLayoutHash (extension) is the committed layout's, "" if none is.
		MemoryLayoutHash string `msg:"memory_layout_hash,optional"`
		// Error and Code (extensions) say why there is no success.
		Error string `msg:"error,omit"`
		Code  string `msg:"code,omit"`
	}

	// GetRuntimeStateRequest asks without a session.
	GetRuntimeStateRequest struct{}
	// GetRuntimeStateResponse answers it; the server closes.
	GetRuntimeStateResponse struct {
		State            string `msg:"state"`
		HasRWSession     bool   `msg:"has_rw_session"`
		ROSessionCount   uint64 `msg:"ro_session_count"`
		WaitingWriters   uint64 `msg:"waiting_writers"`
		Committed        bool   `msg:"committed"`
		IsReady          bool   `msg:"is_ready"`
		AllocationCount  uint64 `msg:"allocation_count,optional"`
		MemoryLayoutHash string `msg:"memory_layout_hash,optional"`
		LayoutCommitted  bool   `msg:"layout_committed,optional"`
		// Nonce (extension) names the server's incarnation.
		Nonce string `msg:"nonce,optional"`
	}

	// GetEventHistoryRequest asks without a session.
	GetEventHistoryRequest struct{}
	// GetEventHistoryResponse has the last events, the oldest first; the server
	// closes.
	GetEventHistoryResponse struct {
		Events []Event `msg:"events,optional"`
	}
	// Event is one event.
	Event struct {
		Kind            string `msg:"kind"`
		AllocationCount uint64 `msg:"allocation_count,optional"`
	}

	// ErrorResponse answers what was refused.
	ErrorResponse struct {
		Error string `msg:"error"`
		Code  int64  `msg:"code,optional"`
	}
)

// Inside a session.
type (
	// AllocateRequest makes an allocation.
	AllocateRequest struct {
		Size int64  `msg:"size"`
		Tag  string `msg:"tag,optional"`
	}
	// AllocateResponse answers it.
	AllocateResponse struct {
		AllocationID string `msg:"allocation_id"`
		Size         uint64 `msg:"size"`
		AlignedSize  uint64 `msg:"aligned_size"`
		LayoutSlot   uint64 `msg:"layout_slot"`
	}

	// ExportAllocationRequest asks for a descriptor of an allocation.
	ExportAllocationRequest struct {
		AllocationID string `msg:"allocation_id"`
	}
	// ExportAllocationResponse answers it, with the descriptor on its first byte.
	ExportAllocationResponse struct {
		AllocationID string `msg:"allocation_id"`
		Size         uint64 `msg:"size"`
		AlignedSize  uint64 `msg:"aligned_size"`
		Tag          string `msg:"tag"`
		LayoutSlot   uint64 `msg:"layout_slot"`
	}

	// GetAllocationRequest asks about one allocation.
	GetAllocationRequest struct {
		AllocationID string `msg:"allocation_id"`
	}
	// GetAllocationResponse answers it, and is an element of a list.
	GetAllocationResponse struct {
		AllocationID string `msg:"allocation_id"`
		Size         uint64 `msg:"size"`
		AlignedSize  uint64 `msg:"aligned_size"`
		Tag          string `msg:"tag"`
		LayoutSlot   uint64 `msg:"layout_slot"`
	}

	// ListAllocationsRequest asks about all allocations, or those of a tag.
	ListAllocationsRequest struct {
		Tag *string `msg:"tag"`
	}
	// ListAllocationsResponse answers it, by layout slot.
	ListAllocationsResponse struct {
		Allocations []GetAllocationResponse `msg:"allocations,optional"`
	}

	// FreeAllocationRequest drops an allocation and its metadata.
	FreeAllocationRequest struct {
		AllocationID string `msg:"allocation_id"`
	}
	// FreeAllocationResponse answers it.
	FreeAllocationResponse struct {
		Success bool `msg:"success"`
	}

	// MetadataPutRequest sets a key.
	MetadataPutRequest struct {
		Key          string `msg:"key"`
		AllocationID string `msg:"allocation_id"`
		OffsetBytes  int64  `msg:"offset_bytes"`
		Value        []byte `msg:"value"`
	}
	// MetadataPutResponse answers it.
	MetadataPutResponse struct {
		Success bool `msg:"success"`
	}

	// MetadataGetRequest asks for a key.
	MetadataGetRequest struct {
		Key string `msg:"key"`
	}
	// MetadataGetResponse answers it. What is not found has empty fields.
	MetadataGetResponse struct {
		Found        bool   `msg:"found"`
		AllocationID string `msg:"allocation_id,optional"`
		OffsetBytes  uint64 `msg:"offset_bytes,optional"`
		Value        []byte `msg:"value,optional"`
	}

	// MetadataDeleteRequest drops a key.
	MetadataDeleteRequest struct {
		Key string `msg:"key"`
	}
	// MetadataDeleteResponse tells whether the key was there.
	MetadataDeleteResponse struct {
		Deleted bool `msg:"deleted"`
	}

	// MetadataListRequest asks for the keys with a prefix.
	MetadataListRequest struct {
		Prefix string `msg:"prefix,optional"`
	}
	// MetadataListResponse has them sorted.
	MetadataListResponse struct {
		Keys []string `msg:"keys,optional"`
	}

	// GetMemoryLayoutHashRequest asks for the committed layout's hash.
	GetMemoryLayoutHashRequest struct{}
	// GetMemoryLayoutHashResponse answers it; "" if nothing is committed.
	GetMemoryLayoutHashResponse struct {
		MemoryLayoutHash string `msg:"memory_layout_hash"`
	}

	// GetLockStateRequest asks how the lock stands.
	GetLockStateRequest struct{}
	// GetLockStateResponse answers it.
	GetLockStateResponse struct {
		State           string `msg:"state"`
		HasRWSession    bool   `msg:"has_rw_session"`
		ROSessionCount  uint64 `msg:"ro_session_count"`
		WaitingWriters  uint64 `msg:"waiting_writers"`
		Committed       bool   `msg:"committed"`
		IsReady         bool   `msg:"is_ready"`
		LayoutCommitted bool   `msg:"layout_committed,optional"`
	}

	// GetAllocationStateRequest asks how many allocations there are.
	GetAllocationStateRequest struct{}
	// GetAllocationStateResponse answers it.
	GetAllocationStateResponse struct {
		AllocationCount uint64 `msg:"allocation_count"`
	}

	// CommitRequest publishes the layout.
	CommitRequest struct{}
	// CommitResponse answers it; the server then closes the session.
	CommitResponse struct {
		Success bool `msg:"success"`
	}
)

// MessageType is the message's name.
func (*OpenUnitRequest) MessageType() string             { return "open_unit_request" }
func (*OpenUnitResponse) MessageType() string            { return "open_unit_response" }
func (*HandshakeRequest) MessageType() string            { return "handshake_request" }
func (*HandshakeResponse) MessageType() string           { return "handshake_response" }
func (*GetRuntimeStateRequest) MessageType() string      { return "get_runtime_state_request" }
func (*GetRuntimeStateResponse) MessageType() string     { return "get_runtime_state_response" }
func (*GetEventHistoryRequest) MessageType() string      { return "get_event_history_request" }
func (*GetEventHistoryResponse) MessageType() string     { return "get_event_history_response" }
func (*ErrorResponse) MessageType() string               { return "error_response" }
func (*AllocateRequest) MessageType() string             { return "allocate_request" }
func (*AllocateResponse) MessageType() string            { return "allocate_response" }
func (*ExportAllocationRequest) MessageType() string     { return "export_allocation_request" }
func (*ExportAllocationResponse) MessageType() string    { return "export_allocation_response" }
func (*GetAllocationRequest) MessageType() string        { return "get_allocation_request" }
func (*GetAllocationResponse) MessageType() string       { return "get_allocation_response" }
func (*ListAllocationsRequest) MessageType() string      { return "list_allocations_request" }
func (*ListAllocationsResponse) MessageType() string     { return "list_allocations_response" }
func (*FreeAllocationRequest) MessageType() string       { return "free_allocation_request" }
func (*FreeAllocationResponse) MessageType() string      { return "free_allocation_response" }
func (*MetadataPutRequest) MessageType() string          { return "metadata_put_request" }
func (*MetadataPutResponse) MessageType() string         { return "metadata_put_response" }
func (*MetadataGetRequest) MessageType() string          { return "metadata_get_request" }
func (*MetadataGetResponse) MessageType() string         { return "metadata_get_response" }
func (*MetadataDeleteRequest) MessageType() string       { return "metadata_delete_request" }
func (*MetadataDeleteResponse) MessageType() string      { return "metadata_delete_response" }
func (*MetadataListRequest) MessageType() string         { return "metadata_list_request" }
func (*MetadataListResponse) MessageType() string        { return "metadata_list_response" }
func (*GetMemoryLayoutHashRequest) MessageType() string  { return "get_memory_layout_hash_request" }
func (*GetMemoryLayoutHashResponse) MessageType() string { return "get_memory_layout_hash_response" }
func (*GetLockStateRequest) MessageType() string         { return "get_lock_state_request" }
func (*GetLockStateResponse) MessageType() string        { return "get_lock_state_response" }
func (*GetAllocationStateRequest) MessageType() string   { return "get_allocation_state_request" }
func (*GetAllocationStateResponse) MessageType() string  { return "get_allocation_state_response" }
func (*CommitRequest) MessageType() string               { return "commit_request" }
func (*CommitResponse) MessageType() string              { return "commit_response" }

// messages makes a message with its defaults by its name.
var messages = byType(
	func() Message { return new(OpenUnitRequest) },
	func() Message { return new(OpenUnitResponse) },
	func() Message { return new(HandshakeRequest) },
	func() Message { return new(HandshakeResponse) },
	func() Message { return new(GetRuntimeStateRequest) },
	func() Message { return new(GetRuntimeStateResponse) },
	func() Message { return new(GetEventHistoryRequest) },
	func() Message { return new(GetEventHistoryResponse) },
	func() Message { return new(ErrorResponse) },
	func() Message { return &AllocateRequest{Tag: DefaultTag} },
	func() Message { return new(AllocateResponse) },
	func() Message { return new(ExportAllocationRequest) },
	func() Message { return new(ExportAllocationResponse) },
	func() Message { return new(GetAllocationRequest) },
	func() Message { return new(GetAllocationResponse) },
	func() Message { return new(ListAllocationsRequest) },
	func() Message { return new(ListAllocationsResponse) },
	func() Message { return new(FreeAllocationRequest) },
	func() Message { return new(FreeAllocationResponse) },
	func() Message { return new(MetadataPutRequest) },
	func() Message { return new(MetadataPutResponse) },
	func() Message { return new(MetadataGetRequest) },
	func() Message { return new(MetadataGetResponse) },
	func() Message { return new(MetadataDeleteRequest) },
	func() Message { return new(MetadataDeleteResponse) },
	func() Message { return new(MetadataListRequest) },
	func() Message { return new(MetadataListResponse) },
	func() Message { return new(GetMemoryLayoutHashRequest) },
	func() Message { return new(GetMemoryLayoutHashResponse) },
	func() Message { return new(GetLockStateRequest) },
	func() Message { return new(GetLockStateResponse) },
	func() Message { return new(GetAllocationStateRequest) },
	func() Message { return new(GetAllocationStateResponse) },
	func() Message { return new(CommitRequest) },
	func() Message { return new(CommitResponse) },
)

func byType(makers ...func() Message) map[string]func() Message {
	out := make(map[string]func() Message, len(makers))
	for _, m := range makers {
		out[m().MessageType()] = m
	}
	return out
}
