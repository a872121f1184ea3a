package capacity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Decode reads inputs, one JSON object after the other, each on one line or on many. A
// field's name must be known, and be there once. The config is that of DefaultConfig where it
// is left out, field by field.
//
// What is wrong with an input is returned all at once, as joined *FieldErrors with the lines
// of the text, and ends the sequence; so does a text that is no JSON, and an error of r.
// Values are those that in.Validate allows under the rules.
func Decode(rules Rules, r io.Reader) iter.Seq2[Input, error] {
	return func(yield func(Input, error) bool) {
		d := &decoder{rules: rules, text: &lines{r: r}}
		d.json = json.NewDecoder(d.text)
		for {
			in, err := d.input()
			if errors.Is(err, io.EOF) || !yield(in, err) || err != nil {
				return
			}
		}
	}
}

// lines counts the lines of what is read through it.
type lines struct {
	r      io.Reader
	read   int64
	breaks []int64 // offsets of line breaks
}

func (l *lines) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for i, rest := 0, p[:n]; ; {
		k := bytes.IndexByte(rest[i:], '\n')
		if k < 0 {
			break
		}
		i += k + 1
		l.breaks = append(l.breaks, l.read+int64(i)-1)
	}
	l.read += int64(n)
	return n, err
}

// at is the line, from 1, of an offset.
func (l *lines) at(offset int64) int {
	n, _ := slices.BinarySearch(l.breaks, offset)
	return n + 1
}

type decoder struct {
	rules  Rules
	json   *json.Decoder
	text   *lines
	where  map[string]int // lines of the fields of this input
	faults []error
}

func (d *decoder) line() int { return d.text.at(max(d.json.InputOffset()-1, 0)) }

func (d *decoder) fault(path, format string, args ...any) {
	d.faults = append(d.faults, &FieldError{Field: path, Line: d.line(), Problem: fmt.Sprintf(format, args...)})
}

func (d *decoder) input() (Input, error) {
	d.where, d.faults = map[string]int{}, nil
	in := Input{Config: DefaultConfig()}
	if !d.json.More() {
		// The end, or a delimiter that nothing opened.
		_, err := d.json.Token()
		if err == nil || !errors.Is(err, io.EOF) {
			err = d.broken(err)
		}
		return Input{}, err
	}
	err := d.object("", map[string]func(string) error{
		"model":     d.into(&in.Model, "a string"),
		"namespace": d.into(&in.Namespace, "a string"),
		"config":    func(at string) error { return d.config(at, &in.Config) },
		"replicas": func(at string) error {
			return d.list(at, func(at string) error {
				in.Replicas = append(in.Replicas, Replica{})
				return d.replica(at, &in.Replicas[len(in.Replicas)-1])
			})
		},
		"variants": func(at string) error {
			return d.list(at, func(at string) error {
				in.Variants = append(in.Variants, Variant{})
				return d.variant(at, &in.Variants[len(in.Variants)-1])
			})
		},
		"model_based_targets": d.targets(&in.ModelBasedTargets),
	})
	if err != nil {
		return Input{}, errors.Join(append(d.faults, d.broken(err))...)
	}
	if len(d.faults) == 0 {
		d.locate(in.Validate(d.rules))
	}
	if len(d.faults) > 0 {
		return Input{}, errors.Join(d.faults...)
	}
	return in, nil
}

// locate gives the errors of Validate their lines.
func (d *decoder) locate(err error) {
	if err == nil {
		return
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, err := range all {
		var field *FieldError
		if errors.As(err, &field) {
			path := field.Field
			for field.Line = d.where[path]; field.Line == 0 && path != ""; field.Line = d.where[path] {
				path = path[:max(strings.LastIndexAny(path, ".["), 0)]
			}
		}
		d.faults = append(d.faults, err)
	}
}

// broken says that the text is no JSON.
func (d *decoder) broken(err error) error {
	line := d.line()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// A token's offset is that of the character; of a value's, the next one's.
		offset := syntax.Offset
		if offset != d.json.InputOffset() {
			offset--
		}
		line = d.text.at(max(offset, 0))
	}
	if err == nil {
		return fmt.Errorf("line %d: expected a JSON object", line)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("line %d: the JSON is incomplete", d.text.at(d.text.read))
	}
	return fmt.Errorf("line %d: %w", line, err)
}

func (d *decoder) config(at string, c *Config) error {
	return d.object(at, map[string]func(string) error{
		"kv_cache_threshold":     d.into(&c.KVCacheThreshold, "a number"),
		"queue_length_threshold": d.into(&c.QueueLengthThreshold, "a number"),
		"kv_spare_trigger":       d.into(&c.KVSpareTrigger, "a number"),
		"queue_spare_trigger":    d.into(&c.QueueSpareTrigger, "a number"),
		"stale_after_seconds":    d.into(&c.StaleAfterSeconds, "a number"),
		"growth_percent":         d.into(&c.GrowthPercent, "a whole number"),
	})
}

func (d *decoder) replica(at string, r *Replica) error {
	return d.object(at, map[string]func(string) error{
		"replica":        d.into(&r.Replica, "a string"),
		"variant":        d.into(&r.Variant, "a string"),
		"accelerator":    d.into(&r.Accelerator, "a string"),
		"cost":           d.into(&r.Cost, ""),
		"kv_cache_usage": d.into(&r.KVCacheUsage, ""),
		"queue_length":   d.into(&r.QueueLength, ""),
		"kv_capacity":    d.into(&r.KVCapacity, ""),
		"age_seconds":    d.into(&r.AgeSeconds, "a number of seconds"),
		"draining":       d.into(&r.Draining, "true or false"),
	})
}

func (d *decoder) variant(at string, v *Variant) error {
	const whole = "a whole number"
	err := d.object(at, map[string]func(string) error{
		"variant":     d.into(&v.Variant, "a string"),
		"current":     d.into(&v.Current, whole),
		"desired":     d.into(&v.Desired, whole),
		"cost":        d.into(&v.Cost, ""),
		"slots":       d.into(&v.Slots, whole),
		"min":         d.into(&v.Min, whole),
		"max":         d.into(&v.Max, whole),
		"pending":     d.into(&v.Pending, whole),
		"draining":    d.into(&v.Draining, whole),
		"unplaceable": d.into(&v.Unplaceable, "true or false"),
	})
	// A count that was forgotten must not look like one of 0.
	if _, there := d.where[at+".current"]; err == nil && !there {
		d.fault(at+".current", "is missing: must be the number of replicas")
	}
	return err
}

// targets reads an object of counts by variant. null is none.
func (d *decoder) targets(to *map[string]int) func(string) error {
	return func(at string) error {
		if ok, err := d.open(at, '{', "an object"); !ok {
			return err
		}
		*to = map[string]int{}
		for d.json.More() {
			token, err := d.json.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			path := fmt.Sprintf("%s[%q]", at, name)
			if _, twice := (*to)[name]; twice {
				d.fault(path, "is a duplicate: must be given once")
			}
			n := -1
			if err := d.into(&n, "a whole number")(path); err != nil {
				return err
			}
			(*to)[name] = n
		}
		_, err := d.json.Token()
		return err
	}
}

// into reads one value.
func (d *decoder) into(to any, want string) func(string) error {
	return func(at string) error {
		var raw json.RawMessage
		if err := d.json.Decode(&raw); err != nil {
			return err
		}
		err := json.Unmarshal(raw, to)
		switch {
		case err == nil:
		case want == "": // the type says what it wants
			d.fault(at, "%s", err.Error())
		default:
			d.fault(at, "is %s: must be %s", clipped(string(raw)), want)
		}
		d.where[at] = d.line()
		return nil
	}
}

// object reads an object whose fields are known.
func (d *decoder) object(at string, fields map[string]func(string) error) error {
	if ok, err := d.open(at, '{', "an object"); !ok {
		return err
	}
	seen := map[string]bool{}
	for d.json.More() {
		token, err := d.json.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		path := name
		if at != "" {
			path = at + "." + name
		}
		read, known := fields[name]
		switch {
		case !known:
			d.fault(path, "is an unknown field: must be one of %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case seen[name]:
			d.fault(path, "is a duplicate: must be given once")
		}
		if !known || seen[name] {
			read = func(string) error { return d.json.Decode(new(json.RawMessage)) }
		}
		seen[name] = true
		if err := read(path); err != nil {
			return err
		}
	}
	_, err := d.json.Token()
	return err
}

// list reads a list.
func (d *decoder) list(at string, element func(at string) error) error {
	if ok, err := d.open(at, '[', "a list"); !ok {
		return err
	}
	for i := 0; d.json.More(); i++ {
		if err := element(fmt.Sprintf("%s[%d]", at, i)); err != nil {
			return err
		}
	}
	_, err := d.json.Token()
	return err
}

// open reads the beginning of an object or list. It returns false for null, which is none of
// it, and where another value is there, which is a fault and is read.
func (d *decoder) open(at string, delim json.Delim, want string) (bool, error) {
	token, err := d.json.Token()
	if err != nil {
		return false, err
	}
	d.where[at] = d.line()
	if token == delim {
		return true, nil
	}
	if token == nil && at != "" {
		return false, nil
	}
	what := at
	if what == "" {
		what = "the input"
	}
	d.fault(what, "is %s: must be %s", describe(token), want)
	for depth := opens(token); depth > 0; {
		if token, err = d.json.Token(); err != nil {
			return false, err
		}
		depth += opens(token)
	}
	return false, nil
}

func describe(token json.Token) string {
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return fmt.Sprintf("%q", clipped(t))
	case nil:
		return "null"
	}
	return fmt.Sprint(token)
}

// opens is what a token adds to the depth.
func opens(token json.Token) int {
	switch token {
	case json.Delim('{'), json.Delim('['):
		return 1
	case json.Delim('}'), json.Delim(']'):
		return -1
	}
	return 0
}
