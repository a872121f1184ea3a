// Package wire is lockd's protocol: JSON objects, one a line,
// over a Unix socket or TCP, at most MaxLine bytes each.
//
//	-> {"op":"acquire","protocol":1,"group":"llama:h100:7f3a","holder":"primary","token":41}
//	<- {"event":"waiting","position":1}
//	<- {"event":"granted","token":42,"regranted":false}
//	<- {"event":"refused","code":"bad_request","error":"…"}
//	-> {"op":"status"}   <- {"event":"status","groups":[…]}
//	-> {"op":"ping"}     <- {"event":"pong"}
//
// Unknown fields are ignored, and a request says which Protocol its client speaks, so that either side
// may be one version newer than the other.
package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"
)

// Protocol is the version of the protocol. It grows with each change after which a lockd or a client of
// the version before must still work. One that is further apart is refused.
const Protocol = 1

// MaxLine is the longest line in bytes, its line feed included.
const MaxLine = 4 << 10

// MaxName is the longest name of a group or a holder in bytes.
const MaxName = 256

// Operations of a Request.
const (
	OpAcquire = "acquire"
	OpStatus  = "status"
	OpPing    = "ping"
)

// Events.
const (
	Waiting     = "waiting"
	Granted     = "granted"
	Refused     = "refused"
	StatusEvent = "status"
	Pong        = "pong"
)

// Request is what a client says.
type Request struct {
	// Op is acquire, status or ping.
	Op string `json:"op"`
	// Protocol is the version that the client speaks, 0 for any.
	Protocol int `json:"protocol,omitempty"`
	// Group is the name of the lock, Holder the client's name for people. Only acquire has
	// them.
	Group  string `json:"group,omitempty"`
	Holder string `json:"holder,omitempty"`
	// Token is what a reconnecting holder was granted, 0 for nobody.
	Token uint64 `json:"token,omitempty"`
	// SessionTTL is, of a client with a session, after how many milliseconds
	// without an answer it gives its lock up; one that is longer than lockd's own
	// would let two hold the lock. Of a local process it is how long it may be
	// silent before it is taken for hung. 0 says nothing.
	SessionTTL int64 `json:"session_ttl_ms,omitempty"`
}

// Event is what lockd says. Which fields count depends on Event.
type Event struct {
	Event string
	// Position is a waiter's, from 1.
	Position int
	// Token and Regranted belong to Granted.
	Token     uint64
	Regranted bool
	// Code and Error belong to Refused.
	Code  string
	Error string
	// Groups belong to Status; More tells that another line follows.
	Groups []Group
	More   bool
}

// Group is one group's status.
type Group struct {
	// Group is the name of the lock.
	Group string `json:"group"`
	// State is one of the states below.
	State string `json:"state"`
	// Holder is the name that the holder gave, Token its fencing token.
	Holder string `json:"holder"`
	Token  uint64 `json:"token"`
	// Since is when the lock was granted, nil while it is free.
	Since *time.Time `json:"since"`
	// PID is the holder's process, 0 where that is not known.
	PID int `json:"pid"`
	// Waiters are the holders that wait, the next one first. There may be more
	// than a line holds: Waiting counts them.
	Waiters []string `json:"waiters"`
	Waiting int      `json:"waiting"`
}

// The forms that the events have on the wire.
type (
	waitingLine struct {
		Event    string `json:"event"`
		Position int    `json:"position"`
	}
	grantedLine struct {
		Event     string `json:"event"`
		Token     uint64 `json:"token"`
		Regranted bool   `json:"regranted"`
	}
	refusedLine struct {
		Event string `json:"event"`
		Code  string `json:"code"`
		Error string `json:"error"`
	}
	statusLine struct {
		Event  string  `json:"event"`
		Groups []Group `json:"groups"`
		More   bool    `json:"more,omitempty"`
	}
	pongLine struct {
		Event string `json:"event"`
	}
)

// ErrTooLong means that a line is longer than MaxLine.
var ErrTooLong = fmt.Errorf("the line is longer than %d bytes", MaxLine)

// EncodeEvent renders an event as a line. An error text is cut so that it fits;
// of anything else that is too long the error is ErrTooLong.
func EncodeEvent(e Event) ([]byte, error) {
	var v any
	switch e.Event {
	case Waiting:
		v = waitingLine{e.Event, e.Position}
	case Granted:
		v = grantedLine{e.Event, e.Token, e.Regranted}
	case Refused:
		v = refusedLine{e.Event, e.Code, clip(e.Error)}
	case StatusEvent:
		groups := e.Groups
		if groups == nil {
			groups = []Group{}
		}
		v = statusLine{e.Event, groups, e.More}
	case Pong:
		v = pongLine{e.Event}
	default:
		return nil, fmt.Errorf("unknown event %q", e.Event)
	}
	return line(v)
}

// EncodeRequest renders a request as a line.
func EncodeRequest(r Request) ([]byte, error) { return line(r) }

func line(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) >= MaxLine {
		return nil, ErrTooLong
	}
	return append(b, '\n'), nil
}

// clip leaves room for a message's escapes.
func clip(s string) string {
	const most = MaxLine / 8
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// DecodeRequest reads a line (with or without its line feed) and checks it.
func DecodeRequest(b []byte) (Request, error) {
	var r Request
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("the line is not the JSON object of a request: %w", err)
	}
	if r.Protocol != 0 && (r.Protocol < Protocol-1 || r.Protocol > Protocol+1) {
		older := "the client"
		if r.Protocol > Protocol {
			older = "lockd"
		}
		return r, fmt.Errorf(`"protocol" is %d: this lockd speaks version %d, and the versions next to it: upgrade %s`, r.Protocol, Protocol, older)
	}
	switch r.Op {
	case OpStatus, OpPing:
		return r, nil
	case OpAcquire:
		if r.SessionTTL < 0 {
			return r, fmt.Errorf(`"session_ttl_ms" is %d: must be 0 or more`, r.SessionTTL)
		}
		return r, errors.Join(checkName("group", r.Group), checkName("holder", r.Holder))
	case "":
		return r, errors.New(`"op" is missing: must be acquire, status or ping`)
	default:
		return r, fmt.Errorf(`"op" is %q: must be acquire, status or ping`, clip(r.Op))
	}
}

func checkName(field, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%q is missing", field)
	case len(name) > MaxName:
		return fmt.Errorf("%q is %d bytes long: must be at most %d", field, len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%q is not valid UTF-8", field)
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%q is %q: must be printable characters only", field, name)
		}
	}
	return nil
}

// DecodeEvent reads a line of lockd's.
func DecodeEvent(b []byte) (Event, error) {
	var v struct {
		Event     string  `json:"event"`
		Position  int     `json:"position"`
		Token     uint64  `json:"token"`
		Regranted bool    `json:"regranted"`
		Code      string  `json:"code"`
		Error     string  `json:"error"`
		Groups    []Group `json:"groups"`
		More      bool    `json:"more"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Event{}, fmt.Errorf("the line is not the JSON object of an event: %w", err)
	}
	if v.Event == "" {
		return Event{}, errors.New(`"event" is missing`)
	}
	return Event(v), nil
}

// Reader reads lines.
type Reader struct{ r *bufio.Reader }

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{bufio.NewReaderSize(r, MaxLine)} }

// Line returns the next line without its line feed; it is valid until the next
// call. The error is io.EOF at a clean end, io.ErrUnexpectedEOF in the middle of
// a line, ErrTooLong, or the reader's.
func (r *Reader) Line() ([]byte, error) {
	b, err := r.r.ReadSlice('\n')
	switch {
	case err == nil:
		return b[:len(b)-1], nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, ErrTooLong
	case errors.Is(err, io.EOF) && len(b) > 0:
		return nil, io.ErrUnexpectedEOF
	default:
		return nil, err
	}
}
