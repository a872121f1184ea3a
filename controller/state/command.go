package state

import (
	"encoding/json"
	"fmt"
)

// Type is a command's first byte in the Raft log. Types are never reused.
type Type byte

// The types of commands.
const (
	TypeUpsertModel     Type = 1
	TypeDeleteModel     Type = 2
	TypeSetScale        Type = 3
	TypePlan            Type = 4
	TypeMove            Type = 5
	TypeRemove          Type = 6
	TypeUpsertNodes     Type = 7
	TypeDeleteNode      Type = 8
	TypeCordon          Type = 9
	TypeRecordDecisions Type = 10
	TypeSetSwitch       Type = 11
	TypeUpsertToken     Type = 12
	TypeDeleteToken     Type = 13
	TypeUpsertModels    Type = 14
	TypeEvict           Type = 15
	TypeDecided         Type = 16
	TypeSetExpected     Type = 17
	TypeSetDedicated    Type = 18
	TypeSetSchedule     Type = 19
	TypeSetPipeline     Type = 20
	TypeSetScaler       Type = 21
	TypeSetVariants     Type = 22

	// IgnoreUnknown is the bit of a type that servers which do not know it skip. A
	// newer version sets it on commands without which an older server's state is
	// still right, as Nomad does (nomad/fsm.go).
	IgnoreUnknown Type = 0x80
)

// MaxCommand is the longest encoded command, in bytes. Raft holds whole entries in
// memory, and sends them whole.
const MaxCommand = 8 << 20

// Command is a change of the state. Its body in the log is JSON: it describes
// itself, unknown fields are left out, and people can read a log.
type Command interface {
	// Type is the command's first byte.
	Type() Type
	// apply makes the change in t, all of it, or returns why not. It sees only t and
	// the command: no clock, no randomness, no order of a Go map.
	apply(t *txn) *Error
}

var (
	_ Command = (*UpsertModel)(nil)
	_ Command = (*DeleteModel)(nil)
	_ Command = (*SetScale)(nil)
	_ Command = (*Plan)(nil)
	_ Command = (*Move)(nil)
	_ Command = (*Remove)(nil)
	_ Command = (*UpsertNodes)(nil)
	_ Command = (*DeleteNode)(nil)
	_ Command = (*Cordon)(nil)
	_ Command = (*RecordDecisions)(nil)
	_ Command = (*SetSwitch)(nil)
	_ Command = (*UpsertToken)(nil)
	_ Command = (*DeleteToken)(nil)
	_ Command = (*UpsertModels)(nil)
	_ Command = (*Evict)(nil)
	_ Command = (*Decided)(nil)
	_ Command = (*SetExpected)(nil)
	_ Command = (*SetDedicated)(nil)
	_ Command = (*SetSchedule)(nil)
	_ Command = (*SetPipeline)(nil)
	_ Command = (*SetScaler)(nil)
	_ Command = (*SetVariants)(nil)
)

// Encode returns the bytes of c for the Raft log.
func Encode(c Command) ([]byte, error) {
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

// decode returns nil and no error for a command to be skipped.
func decode(data []byte) (Command, *Error) {
	if len(data) == 0 {
		return nil, badRequest("", "command is empty")
	}
	if len(data) > MaxCommand {
		return nil, badRequest("", "command is %d bytes: must be at most %d bytes", len(data), MaxCommand)
	}
	c := newCommand(Type(data[0]))
	if c == nil {
		if Type(data[0])&IgnoreUnknown != 0 {
			return nil, nil
		}
		return nil, refuse(CodeUnknownCommand, "", "unknown command type %d, written by a newer version of remuda: upgrade this server", data[0])
	}
	if err := json.Unmarshal(data[1:], c); err != nil {
		return nil, badRequest("", "decode command type %d: %v", data[0], err)
	}
	return c, nil
}

func newCommand(t Type) Command {
	switch t {
	case TypeUpsertModel:
		return new(UpsertModel)
	case TypeDeleteModel:
		return new(DeleteModel)
	case TypeSetScale:
		return new(SetScale)
	case TypePlan:
		return new(Plan)
	case TypeMove:
		return new(Move)
	case TypeRemove:
		return new(Remove)
	case TypeUpsertNodes:
		return new(UpsertNodes)
	case TypeDeleteNode:
		return new(DeleteNode)
	case TypeCordon:
		return new(Cordon)
	case TypeRecordDecisions:
		return new(RecordDecisions)
	case TypeSetSwitch:
		return new(SetSwitch)
	case TypeUpsertToken:
		return new(UpsertToken)
	case TypeDeleteToken:
		return new(DeleteToken)
	case TypeUpsertModels:
		return new(UpsertModels)
	case TypeEvict:
		return new(Evict)
	case TypeDecided:
		return new(Decided)
	case TypeSetExpected:
		return new(SetExpected)
	case TypeSetDedicated:
		return new(SetDedicated)
	case TypeSetSchedule:
		return new(SetSchedule)
	case TypeSetPipeline:
		return new(SetPipeline)
	case TypeSetScaler:
		return new(SetScaler)
	case TypeSetVariants:
		return new(SetVariants)
	}
	return nil
}

// Result is what became of a command.
type Result struct {
	// Index is the command's own index in the log.
	Index uint64
	// Changed tells that the state is another one than before; false where the
	// command asked for what was there, or was refused.
	Changed bool
	// Ignored: the command is of a newer version and may be skipped.
	Ignored bool
	// Err is why the command was refused; nil where it was not.
	Err *Error
}
