package conformance_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// frameCap is the largest body of a request.
const frameCap = 1 << 20

// message is the body of a frame: a map whose key "type" names it.
type message map[string]any

// newMessage makes a message of a type and of pairs of keys and values.
func newMessage(kind string, pairs ...any) message {
	m := message{"type": kind}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

func (m message) kind() string {
	s, _ := m["type"].(string)
	return s
}

// encode is the body: the type first, as v0's encoder writes it, and the other keys
// in order, so that a run repeats the bytes of the last.
func encode(m message) []byte {
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.UseCompactInts(true)
	keys := make([]string, 0, len(m))
	for k := range m {
		if k != "type" {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	if _, ok := m["type"]; ok {
		keys = slices.Insert(keys, 0, "type")
	}
	must(enc.EncodeMapLen(len(keys)))
	for _, k := range keys {
		must(enc.EncodeString(k))
		must(enc.Encode(m[k]))
	}
	return b.Bytes()
}

// decode reads a body that must be one map with string keys and nothing after it.
func decode(body []byte) (message, error) {
	r := bytes.NewReader(body)
	dec := msgpack.NewDecoder(r)
	m, err := dec.DecodeMap()
	if err != nil {
		return nil, fmt.Errorf("decode a body of %d bytes: %w", len(body), err)
	}
	if m == nil {
		return nil, fmt.Errorf("body %x is nil", body)
	}
	if r.Len() > 0 {
		return nil, fmt.Errorf("%d bytes after the map of %v", r.Len(), m["type"])
	}
	return plain(m).(map[string]any), nil
}

// plain gives all integers of a value the type int64, or uint64 where they are
// larger. It leaves text and bytes apart.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = plain(x)
		}
	case []any:
		for i, x := range v {
			v[i] = plain(x)
		}
	case int8, int16, int32, int64:
		return reflect.ValueOf(v).Int()
	case uint8, uint16, uint32, uint64:
		if n := reflect.ValueOf(v).Uint(); n > math.MaxInt64 {
			return n
		}
		return int64(reflect.ValueOf(v).Uint())
	}
	return v
}

// frame puts the length before a body.
func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
