package wire_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/lockd/wire"
)

// TestLinesAreAsDesigned compares with the protocol's description, letter by
// letter.
func TestLinesAreAsDesigned(t *testing.T) {
	for want, e := range map[string]wire.Event{
		`{"event":"waiting","position":1}`:                             {Event: wire.Waiting, Position: 1},
		`{"event":"granted","token":42,"regranted":false}`:             {Event: wire.Granted, Token: 42},
		`{"event":"granted","token":41,"regranted":true}`:              {Event: wire.Granted, Token: 41, Regranted: true},
		`{"event":"refused","code":"bad_request","error":"no \"op\""}`: {Event: wire.Refused, Code: "bad_request", Error: `no "op"`},
		`{"event":"pong"}`:               {Event: wire.Pong},
		`{"event":"status","groups":[]}`: {Event: wire.StatusEvent},
	} {
		line, err := wire.EncodeEvent(e)
		require.NoError(t, err)
		require.Equal(t, want+"\n", string(line))
		back, err := wire.DecodeEvent(line)
		require.NoError(t, err)
		if e.Event != wire.StatusEvent {
			require.Equal(t, e, back)
		}
	}
	line, err := wire.EncodeRequest(wire.Request{Op: wire.OpAcquire, Group: "llama:h100:7f3a", Holder: "primary", Token: 41})
	require.NoError(t, err)
	require.Equal(t, `{"op":"acquire","group":"llama:h100:7f3a","holder":"primary","token":41}`+"\n", string(line))
	since := time.Date(2026, 2, 17, 10, 5, 30, 0, time.UTC)
	line, err = wire.EncodeEvent(wire.Event{Event: wire.StatusEvent, Groups: []wire.Group{{Group: "g", State: "held", Holder: "primary", Token: 2, Since: &since, PID: 7, Waiters: []string{"shadow"}, Waiting: 1}}})
	require.NoError(t, err)
	require.Equal(t, `{"event":"status","groups":[{"group":"g","state":"held","holder":"primary","token":2,"since":"2026-02-17T10:05:30Z","pid":7,"waiters":["shadow"],"waiting":1}]}`+"\n", string(line))
}

func TestRequestsAreChecked(t *testing.T) {
	for line, want := range map[string]string{
		``:                             "not the JSON object",
		`[]`:                           "not the JSON object",
		`{"op":5}`:                     "not the JSON object",
		`{}`:                           `"op" is missing`,
		`{"op":"release"}`:             `"op" is "release": must be acquire, status or ping`,
		`{"op":"acquire"}`:             `"group" is missing`,
		`{"op":"acquire","group":"g"}`: `"holder" is missing`,
		`{"op":"acquire","group":"g","holder":"a\nb"}`:                             "printable characters only",
		`{"op":"acquire","group":"g","holder":"` + strings.Repeat("x", 257) + `"}`: "257 bytes long: must be at most 256",
		`{"op":"acquire","group":"g","holder":"h","token":-1}`:                     "not the JSON object",
		`{"op":"acquire","group":"g","holder":"h","session_ttl_ms":-1}`:            `"session_ttl_ms" is -1`,
		`{"op":"ping","protocol":3}`:                                               `"protocol" is 3: this lockd speaks version 1, and the versions next to it: upgrade lockd`,
		`{"op":"ping","protocol":-1}`:                                              `"protocol" is -1: this lockd speaks version 1, and the versions next to it: upgrade the client`,
	} {
		_, err := wire.DecodeRequest([]byte(line))
		require.ErrorContains(t, err, want, line)
	}
	r, err := wire.DecodeRequest([]byte(`{"op":"ping","new":{"field":[1]}}`))
	require.NoError(t, err, "unknown fields are another version's")
	require.Equal(t, wire.Request{Op: wire.OpPing}, r)
	next := wire.Request{Op: wire.OpAcquire, Protocol: wire.Protocol + 1, Group: "g", Holder: "h", Token: 7}
	line, err := wire.EncodeRequest(next)
	require.NoError(t, err)
	r, err = wire.DecodeRequest(line)
	require.NoError(t, err, "one version apart")
	require.Equal(t, next, r)
}

func TestLongTextsFit(t *testing.T) {
	for _, text := range []string{strings.Repeat("ö", 5000), strings.Repeat("\x01", 5000), strings.Repeat("\"", 5000)} {
		line, err := wire.EncodeEvent(wire.Event{Event: wire.Refused, Code: "x", Error: text})
		require.NoError(t, err)
		require.LessOrEqual(t, len(line), wire.MaxLine)
		require.True(t, json.Valid(line))
	}
	_, err := wire.EncodeEvent(wire.Event{Event: wire.StatusEvent, Groups: []wire.Group{{Group: strings.Repeat("x", 5000)}}})
	require.ErrorIs(t, err, wire.ErrTooLong)
	_, err = wire.EncodeEvent(wire.Event{Event: "party"})
	require.Error(t, err)
}

func TestReader(t *testing.T) {
	longest := strings.Repeat("x", wire.MaxLine-1)
	for name, tc := range map[string]struct {
		in   string
		want []string
		err  error
	}{
		"lines":          {"a\nbb\n\n", []string{"a", "bb", ""}, io.EOF},
		"the longest":    {longest + "\na\n", []string{longest, "a"}, io.EOF},
		"one too long":   {"a\n" + longest + "x\nb\n", []string{"a"}, wire.ErrTooLong},
		"without an end": {"a\nb", []string{"a"}, io.ErrUnexpectedEOF},
		"nothing":        {"", nil, io.EOF},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{
			"coalesced": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "with its end": iotest.DataErrReader,
		} {
			r := wire.NewReader(wrap(strings.NewReader(tc.in)))
			var got []string
			var err error
			for {
				var line []byte
				if line, err = r.Line(); err != nil {
					break
				}
				got = append(got, string(line))
			}
			require.Equal(t, tc.want, got, "%s, %s", name, how)
			require.True(t, errors.Is(err, tc.err), "%s, %s: %v", name, how, err)
		}
	}
}

// FuzzDecode: what is accepted can be said again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"op":"acquire","group":"g","holder":"h","token":41}`))
	f.Add([]byte(`{"event":"granted","token":1,"regranted":true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, err := wire.DecodeRequest(line); err == nil {
			again, err := wire.EncodeRequest(r)
			if err == nil {
				back, err := wire.DecodeRequest(again)
				require.NoError(t, err)
				if r.Op == wire.OpAcquire {
					require.Equal(t, r, back)
				}
			}
		}
		_, _ = wire.DecodeEvent(line)
	})
}
