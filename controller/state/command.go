package state

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Type is a command's first byte in the Raft log. Types are never reused: 1, 6, 10,
// 14, 15, 17, 21 and 22 are retired.
type Type byte

// The types of commands.
const (
	TypeDeleteModel  Type = 2
	TypeScale        Type = 3
	TypePlan         Type = 4
	TypeMove         Type = 5
	TypeUpsertNodes  Type = 7
	TypeDeleteNode   Type = 8
	TypeCordon       Type = 9
	TypeSetSwitch    Type = 11
	TypeUpsertToken  Type = 12
	TypeDeleteToken  Type = 13
	TypeDecided      Type = 16
	TypeSetDedicated Type = 18
	TypeSetSchedule  Type = 19
	TypeSetPipeline  Type = 20
	TypeWriteModels  Type = 23
	TypeSetShimKey   Type = 24
	TypeSetKey       Type = 25
	TypeCountUsage   Type = 26
	TypeSetAddresses Type = 27
)

// MaxCommand is the longest encoded command, in bytes. Raft holds whole entries in
// memory, and sends them whole.
const MaxCommand = 8 << 20

// Command is a change of the state. Its body in the log is JSON: it describes
// itself, and people can read a log. A field that this version does not know is an
// unknown command: without it the command may mean something else.
type Command interface {
	// Type is the command's first byte.
	Type() Type
	// apply makes the change in t, all of it, or returns why not. It sees only t and
	// the command: no clock, no randomness, no order of a Go map.
	apply(t *txn) *Error
}

// checker is a command with rules for its own content: bounds and lists of words, which may
// be others in the next version. They hold for what is new. A replayed log is not checked
// against them, or it would make another state than it made before. What a table can hold at
// all, and the ledger, are apply's.
type checker interface {
	check() *Error
}

func check(c Command) error {
	if c, ok := c.(checker); ok {
		if err := c.check(); err != nil {
			return err
		}
	}
	return nil
}

// Encode returns the bytes of c for the Raft log, or what is wrong with c itself.
func Encode(c Command) ([]byte, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command %d: %w", c.Type(), err)
	}
	if len(body)+1 > MaxCommand {
		return nil, badRequest("", "command is %d bytes: must be at most %d bytes", len(body)+1, MaxCommand)
	}
	data := make([]byte, 0, len(body)+1)
	data = append(data, byte(c.Type()))
	return append(data, body...), nil
}

func decode(data []byte) (Command, *Error) {
	if len(data) == 0 {
		return nil, badRequest("", "command is empty")
	}
	if len(data) > MaxCommand {
		return nil, badRequest("", "command is %d bytes: must be at most %d bytes", len(data), MaxCommand)
	}
	return decodeBody(Type(data[0]), data[1:])
}

func decodeBody(t Type, body []byte) (Command, *Error) {
	empty, known := commands[t]
	if !known {
		return nil, reject(CodeUnknownCommand, "", "unknown command type %d, written by a newer version of remuda: upgrade this server", t)
	}
	c := empty()
	switch unknown, err := decodeJSON(body, c); {
	case unknown:
		return nil, reject(CodeUnknownCommand, "", "command type %d: %v, written by a newer version of remuda: upgrade this server", t, err)
	case err != nil:
		return nil, badRequest("", "decode command type %d: %v", t, err)
	}
	return c, nil
}

// decodeJSON decodes one JSON value. Where nothing is wrong but that it has a field that this
// version does not know, unknown is true: that field must not be lost silently.
func decodeJSON(data []byte, to any) (unknown bool, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err = d.Decode(to); err == nil && len(bytes.TrimSpace(data[d.InputOffset():])) == 0 {
		return false, nil
	}
	if other := json.Unmarshal(data, to); other != nil {
		return false, other
	}
	return true, err
}

// commands makes an empty command of each type.
var commands = map[Type]func() Command{
	TypeDeleteModel:  func() Command { return new(DeleteModel) },
	TypeScale:        func() Command { return new(Scale) },
	TypePlan:         func() Command { return new(Plan) },
	TypeMove:         func() Command { return new(Move) },
	TypeUpsertNodes:  func() Command { return new(UpsertNodes) },
	TypeDeleteNode:   func() Command { return new(DeleteNode) },
	TypeCordon:       func() Command { return new(Cordon) },
	TypeSetSwitch:    func() Command { return new(SetSwitch) },
	TypeUpsertToken:  func() Command { return new(UpsertToken) },
	TypeDeleteToken:  func() Command { return new(DeleteToken) },
	TypeDecided:      func() Command { return new(Decided) },
	TypeSetDedicated: func() Command { return new(SetDedicated) },
	TypeSetSchedule:  func() Command { return new(SetSchedule) },
	TypeSetPipeline:  func() Command { return new(SetPipeline) },
	TypeWriteModels:  func() Command { return new(WriteModels) },
	TypeSetShimKey:   func() Command { return new(SetShimKey) },
	TypeSetKey:       func() Command { return new(SetKey) },
	TypeCountUsage:   func() Command { return new(CountUsage) },
	TypeSetAddresses: func() Command { return new(SetAddresses) },
}

// Result is what became of a command.
type Result struct {
	// Index is the command's own index in the log.
	Index uint64
	// Changed reports whether the command changed the state. It is false if the state was already
	// as the command wants it, or the command was rejected.
	Changed bool
	// Err is why the command was rejected, nil if it was not.
	Err *Error
}
