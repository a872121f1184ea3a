package wire

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// maxDepth bounds how deep values may be nested. The protocol's own messages
// need three levels; unknown fields may be deeper.
const maxDepth = 32

// ErrMalformed is wrapped where bytes are not MessagePack, or not a single map. There
// is nothing to answer to: the connection is over.
var ErrMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// typeKey is the key that holds a message's name.
const typeKey = "type"

// ErrUnknownType is wrapped where a message has a name that the protocol does
// not know.
var ErrUnknownType = errors.New("unknown message type")

// FieldError is a well-formed message that has a field of another type than the
// protocol's, or lacks one. The sender can be told.
type FieldError struct {
	// Message is the name of the message, Field that of the field.
	Message, Field string
	// Problem says what is wrong, as "must be a string, got nil".
	Problem string
}

// Error names the message, the field and the problem.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: field %q: %s", e.Message, e.Field, e.Problem)
}

// Refusable tells whether a message could not be taken for a reason that its
// sender can be told in an error_response: an unknown name or a bad field. All
// other errors end the connection.
func Refusable(err error) bool {
	var field *FieldError
	return errors.Is(err, ErrUnknownType) || errors.As(err, &field)
}

// field is one field of a message as its struct tag describes it:
//
//	`msg:"name"`           must be there when read
//	`msg:"name,optional"`  may be missing when read
//	`msg:"name,omit"`      may be missing or nil when read; left out when written
//	                       with its zero value
//	`msg:"name,nil"`       may be missing or nil when read; written as nil when it
//	                       has its zero value
//
// A pointer may be missing or nil when read, and nil is written as nil.
type field struct {
	name  string
	index int
	// optional: may be missing; nilable: nil is the zero value.
	optional, nilable bool
	omit              bool
}

// plan is how a struct travels.
type plan struct {
	// name is the message's, empty for an element without one.
	name   string
	fields []field
	byName map[string]int
}

var plans sync.Map // of reflect.Type to *plan

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := &plan{byName: map[string]int{}}
	if m, ok := reflect.New(t).Interface().(Message); ok {
		p.name = m.MessageType()
	}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("msg"), ",")
		if name == "" {
			continue
		}
		f := field{name: name, index: i}
		pointer := t.Field(i).Type.Kind() == reflect.Pointer
		f.omit = options == "omit"
		f.nilable = pointer || f.omit || options == "nil"
		f.optional = f.nilable || options == "optional"
		p.byName[name] = len(p.fields)
		p.fields = append(p.fields, f)
	}
	stored, _ := plans.LoadOrStore(t, p)
	return stored.(*plan)
}

// Encode makes the body of a frame. A message's own strings must be UTF-8; it is
// an error in the program if they are not.
func Encode(m Message) ([]byte, error) {
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil, fmt.Errorf("encode %T: must be a pointer to a message", m)
	}
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	if err := encode(e, v.Elem()); err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.MessageType(), err)
	}
	return b.Bytes(), nil
}

func encodeObject(e *msgpack.Encoder, v reflect.Value) error {
	p := planOf(v.Type())
	n := 0
	for _, f := range p.fields {
		if !f.omit || !v.Field(f.index).IsZero() {
			n++
		}
	}
	if p.name != "" {
		n++
	}
	err := e.EncodeMapLen(n)
	if p.name != "" {
		err = errors.Join(err, e.EncodeString(typeKey), e.EncodeString(p.name))
	}
	for _, f := range p.fields {
		value := v.Field(f.index)
		zero := f.nilable && value.IsZero()
		if zero && f.omit {
			continue
		}
		err = errors.Join(err, e.EncodeString(f.name))
		if zero {
			err = errors.Join(err, e.EncodeNil())
		} else {
			err = errors.Join(err, encode(e, value))
		}
	}
	return err
}

func encode(e *msgpack.Encoder, v reflect.Value) error {
	switch {
	case v.Kind() == reflect.Pointer:
		return encode(e, v.Elem())
	case v.Kind() == reflect.Struct:
		return encodeObject(e, v)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return e.EncodeBytes(append([]byte{}, v.Bytes()...)) // never nil
	case v.Kind() == reflect.Slice:
		err := e.EncodeArrayLen(v.Len())
		for i := range v.Len() {
			err = errors.Join(err, encode(e, v.Index(i)))
		}
		return err
	default:
		return e.EncodeValue(v)
	}
}

// kind is the type of a MessagePack value.
type kind string

const (
	kindNil   kind = "nil"
	kindBool  kind = "a bool"
	kindInt   kind = "an integer"
	kindFloat kind = "a float"
	kindStr   kind = "a string"
	kindBin   kind = "bytes"
	kindArray kind = "a list"
	kindMap   kind = "a map"
	kindExt   kind = "an extension"
)

func kindOf(c byte) kind {
	switch {
	case c == msgpcode.Nil:
		return kindNil
	case c == msgpcode.False, c == msgpcode.True:
		return kindBool
	case msgpcode.IsFixedNum(c), c >= msgpcode.Uint8 && c <= msgpcode.Int64:
		return kindInt
	case c == msgpcode.Float, c == msgpcode.Double:
		return kindFloat
	case msgpcode.IsString(c):
		return kindStr
	case msgpcode.IsBin(c):
		return kindBin
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		return kindArray
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		return kindMap
	default: // the decoder refuses what is none
		return kindExt
	}
}

// decoder walks through a message.
type decoder struct {
	*msgpack.Decoder
	rest *bytes.Reader
}

func newDecoder(body []byte) *decoder {
	r := bytes.NewReader(body)
	return &decoder{msgpack.NewDecoder(r), r}
}

// next is the kind of the next value, and its first byte.
func (d *decoder) next() (kind, byte, error) {
	c, err := d.PeekCode()
	if err != nil {
		return "", 0, malformed("%v", err)
	}
	return kindOf(c), c, nil
}

// mapLen and listLen read the head of a map or a list. The number of elements is
// bounded by what is left.
func (d *decoder) mapLen() (int, error) {
	n, err := d.DecodeMapLen()
	if err == nil && n > d.rest.Len()/2 {
		err = fmt.Errorf("a map of %d pairs in %d bytes", n, d.rest.Len())
	}
	if err != nil {
		return 0, malformed("%v", err)
	}
	return n, nil
}

func (d *decoder) listLen() (int, error) {
	n, err := d.DecodeArrayLen()
	if err == nil && n > d.rest.Len() {
		err = fmt.Errorf("a list of %d elements in %d bytes", n, d.rest.Len())
	}
	if err != nil {
		return 0, malformed("%v", err)
	}
	return n, nil
}

// str reads a string that may be any bytes.
func (d *decoder) str() (string, error) {
	s, err := d.DecodeString()
	if err != nil {
		return "", malformed("%v", err)
	}
	return s, nil
}

// key reads a key of a map.
func (d *decoder) key() (string, error) {
	k, _, err := d.next()
	if err != nil {
		return "", err
	}
	if k != kindStr {
		return "", malformed("keys must be strings, got %s", k)
	}
	return d.str()
}

// skip reads one value.
func (d *decoder) skip(depth int) error {
	k, _, err := d.next()
	if err != nil {
		return err
	}
	n := 0
	switch k {
	case kindMap:
		n, err = d.mapLen()
		n *= 2
	case kindArray:
		n, err = d.listLen()
	default:
		if err := d.Skip(); err != nil {
			return malformed("%v", err)
		}
		return nil
	}
	if err == nil && depth >= maxDepth {
		err = malformed("values are nested deeper than %d", maxDepth)
	}
	for ; err == nil && n > 0; n-- {
		err = d.skip(depth + 1)
	}
	return err
}

// Decode reads the body of a frame. Its errors wrap ErrMalformed or
// ErrUnknownType, or are a FieldError (see Refusable).
func Decode(body []byte) (Message, error) {
	name, err := nameOf(body)
	if err != nil {
		return nil, err
	}
	if name == nil {
		return nil, &FieldError{Message: "message", Field: typeKey, Problem: "must be a string, got none"}
	}
	newMessage, ok := messages[*name]
	if !ok {
		return nil, fmt.Errorf("%w %q", ErrUnknownType, *name)
	}
	m := newMessage()
	if err := newDecoder(body).object(reflect.ValueOf(m).Elem(), *name, 0); err != nil {
		return nil, err
	}
	return m, nil
}

// nameOf finds the message's name, and sees to it that the body is one
// well-formed map and nothing else. nil: it has no name that is a string.
func nameOf(body []byte) (name *string, err error) {
	d := newDecoder(body)
	k, _, err := d.next()
	if err != nil {
		return nil, err
	}
	if k != kindMap {
		return nil, malformed("must be a map, got %s", k)
	}
	n, err := d.mapLen()
	for ; err == nil && n > 0; n-- {
		var key string
		if key, err = d.key(); err != nil {
			break
		}
		if k, _, err = d.next(); err != nil {
			break
		}
		if key != typeKey || k != kindStr {
			if key == typeKey {
				name = nil
			}
			err = d.skip(1)
			continue
		}
		var s string
		s, err = d.str()
		name = &s
	}
	if err == nil && d.rest.Len() > 0 {
		err = malformed("%d bytes follow the message", d.rest.Len())
	}
	if err != nil {
		return nil, err
	}
	return name, nil
}

// object fills a struct from a map.
func (d *decoder) object(v reflect.Value, message string, depth int) error {
	p := planOf(v.Type())
	seen := make([]bool, len(p.fields))
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		i, known := p.byName[key]
		if !known {
			if err := d.skip(depth + 1); err != nil {
				return err
			}
			continue
		}
		seen[i] = true
		f := p.fields[i]
		target := v.Field(f.index)
		k, _, err := d.next()
		switch {
		case err != nil:
		case k == kindNil && f.nilable:
			target.SetZero()
			err = d.skip(depth + 1)
		default:
			err = d.fill(target, message, f.name, depth)
		}
		if err != nil {
			return err
		}
	}
	for i, f := range p.fields {
		if !seen[i] && !f.optional {
			return &FieldError{Message: message, Field: f.name, Problem: "it is missing"}
		}
	}
	return nil
}

// wanted is the kind of value that a field takes.
func wanted(t reflect.Type) kind {
	switch t.Kind() {
	case reflect.Bool:
		return kindBool
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return kindInt
	case reflect.String:
		return kindStr
	case reflect.Struct:
		return kindMap
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return kindBin
		}
		return kindArray
	default:
		panic("wire: a message has a field of type " + t.String())
	}
}

// fill sets target to the next value.
func (d *decoder) fill(target reflect.Value, message, name string, depth int) error {
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
		return d.fill(target.Elem(), message, name, depth)
	}
	wrong := func(problem string) error { return &FieldError{Message: message, Field: name, Problem: problem} }
	got, code, err := d.next()
	if err != nil {
		return err
	}
	want := wanted(target.Type())
	if got != want {
		return wrong(fmt.Sprintf("must be %s, got %s", want, got))
	}
	switch want {
	case kindMap:
		return d.object(target, message, depth+1)
	case kindArray:
		return d.list(target, message, name, depth)
	case kindStr:
		s, err := d.str()
		if err != nil {
			return err
		}
		if !utf8.ValidString(s) {
			return wrong("the string is not UTF-8")
		}
		target.SetString(s)
		return nil
	case kindBin:
		b, err := d.DecodeBytes()
		if err != nil {
			return malformed("%v", err)
		}
		target.SetBytes(append([]byte{}, b...))
		return nil
	case kindBool:
		b, err := d.DecodeBool()
		if err != nil {
			return malformed("%v", err)
		}
		target.SetBool(b)
		return nil
	}
	n, err := d.DecodeInt64() // the same bits for what only a uint64 holds
	if err != nil {
		return malformed("%v", err)
	}
	switch large := code == msgpcode.Uint64 && n < 0; {
	case target.CanInt() && large, target.CanUint() && n < 0 && !large:
		return wrong("the integer is out of range")
	case target.CanInt():
		target.SetInt(n)
	default:
		target.SetUint(uint64(n))
	}
	return nil
}

// list fills a slice. It grows with the elements that are there, whatever the
// head claims.
func (d *decoder) list(target reflect.Value, message, name string, depth int) error {
	n, err := d.listLen()
	if err != nil {
		return err
	}
	out := reflect.MakeSlice(target.Type(), 0, min(n, 1024))
	for range n {
		v := reflect.New(target.Type().Elem()).Elem()
		if err := d.fill(v, message, name, depth+1); err != nil {
			return err
		}
		out = reflect.Append(out, v)
	}
	target.Set(out)
	return nil
}
