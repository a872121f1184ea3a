package wire

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
)

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
	e := encoder{out: make([]byte, 0, 128)}
	e.object(v.Elem())
	return e.out, nil
}

func (e *encoder) object(v reflect.Value) {
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
	e.mapping(n)
	if p.name != "" {
		e.str(typeKey)
		e.str(p.name)
	}
	for _, f := range p.fields {
		value := v.Field(f.index)
		zero := f.nilable && value.IsZero()
		if zero && f.omit {
			continue
		}
		e.str(f.name)
		if zero {
			e.null()
			continue
		}
		e.any(value)
	}
}

func (e *encoder) any(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		e.any(v.Elem())
	case reflect.Bool:
		e.bool(v.Bool())
	case reflect.Int, reflect.Int64:
		e.int(v.Int())
	case reflect.Uint64:
		e.uint(v.Uint())
	case reflect.String:
		e.str(v.String())
	case reflect.Struct:
		e.object(v)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			e.bin(v.Bytes())
			return
		}
		e.array(v.Len())
		for i := range v.Len() {
			e.any(v.Index(i))
		}
	default:
		panic("wire: a message has a field of type " + v.Type().String())
	}
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
	d := decoder{rest: body}
	head, err := d.next()
	if err != nil {
		return nil, err
	}
	if err := d.object(reflect.ValueOf(m).Elem(), head, *name, 0); err != nil {
		return nil, err
	}
	return m, nil
}

// nameOf finds the message's name, and sees to it that the body is one
// well-formed map and nothing else. nil: it has no name that is a string.
func nameOf(body []byte) (*string, error) {
	d := decoder{rest: body}
	head, err := d.next()
	if err != nil {
		return nil, err
	}
	if head.kind != kindMap {
		return nil, malformed("must be a map, got %s", head.kind)
	}
	var name *string
	for range head.n {
		key, err := d.next()
		if err != nil {
			return nil, err
		}
		if key.kind != kindStr {
			return nil, malformed("keys must be strings, got %s", key.kind)
		}
		value, err := d.next()
		if err != nil {
			return nil, err
		}
		if string(key.raw) == typeKey {
			name = nil
			if value.kind == kindStr {
				s := string(value.raw)
				name = &s
			}
		}
		if err := d.skip(value, 1); err != nil {
			return nil, err
		}
	}
	if len(d.rest) > 0 {
		return nil, malformed("%d bytes follow the message", len(d.rest))
	}
	return name, nil
}

// object fills a struct from a map whose head was read.
func (d *decoder) object(v reflect.Value, head token, message string, depth int) error {
	p := planOf(v.Type())
	seen := make([]bool, len(p.fields))
	for range head.n {
		key, err := d.next()
		if err != nil {
			return err
		}
		if key.kind != kindStr {
			return malformed("keys must be strings, got %s", key.kind)
		}
		value, err := d.next()
		if err != nil {
			return err
		}
		i, known := p.byName[string(key.raw)]
		if !known {
			if err := d.skip(value, depth+1); err != nil {
				return err
			}
			continue
		}
		seen[i] = true
		f := p.fields[i]
		target := v.Field(f.index)
		if value.kind == kindNil && f.nilable {
			target.SetZero()
			continue
		}
		if err := d.fill(target, value, message, f.name, depth); err != nil {
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

// fill sets target to the value whose head is t.
func (d *decoder) fill(target reflect.Value, t token, message, name string, depth int) error {
	wrong := func(want kind) error {
		return &FieldError{Message: message, Field: name, Problem: fmt.Sprintf("must be %s, got %s", want, t.kind)}
	}
	outside := func() error {
		return &FieldError{Message: message, Field: name, Problem: "the integer is out of range"}
	}
	switch target.Kind() {
	case reflect.Pointer:
		target.Set(reflect.New(target.Type().Elem()))
		return d.fill(target.Elem(), t, message, name, depth)
	case reflect.Bool:
		if t.kind != kindBool {
			return wrong(kindBool)
		}
		target.SetBool(t.flag)
	case reflect.Int, reflect.Int64:
		if t.kind != kindInt {
			return wrong(kindInt)
		}
		if !t.negative && t.n > math.MaxInt64 {
			return outside()
		}
		target.SetInt(int64(t.n))
	case reflect.Uint64:
		if t.kind != kindInt {
			return wrong(kindInt)
		}
		if t.negative {
			return outside()
		}
		target.SetUint(t.n)
	case reflect.String:
		if t.kind != kindStr {
			return wrong(kindStr)
		}
		if !text(t.raw) {
			return &FieldError{Message: message, Field: name, Problem: "the string is not UTF-8"}
		}
		target.SetString(string(t.raw))
	case reflect.Struct:
		if t.kind != kindMap {
			return wrong(kindMap)
		}
		return d.object(target, t, message, depth+1)
	case reflect.Slice:
		if target.Type().Elem().Kind() == reflect.Uint8 {
			if t.kind != kindBin {
				return wrong(kindBin)
			}
			target.SetBytes(append([]byte{}, t.raw...))
			return nil
		}
		if t.kind != kindArray {
			return wrong(kindArray)
		}
		return d.list(target, t, message, name, depth)
	default:
		panic("wire: a message has a field of type " + target.Type().String())
	}
	return nil
}

// list fills a slice. It grows with the elements that are there, whatever the
// head claims.
func (d *decoder) list(target reflect.Value, t token, message, name string, depth int) error {
	element := target.Type().Elem()
	out := reflect.MakeSlice(target.Type(), 0, int(min(t.n, 1024)))
	for range t.n {
		head, err := d.next()
		if err != nil {
			return err
		}
		v := reflect.New(element).Elem()
		if err := d.fill(v, head, message, name, depth+1); err != nil {
			return err
		}
		out = reflect.Append(out, v)
	}
	target.Set(out)
	return nil
}
