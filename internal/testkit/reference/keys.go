package reference

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Keys are the settings of a part of a configuration. What there is to say of them is found
// out by setting them: the field that changes has the comment and the default, the values
// that are taken show the type, and the errors for the others show what is allowed.
type Keys[C any] struct {
	// Names are the settings in their order, as they are shown.
	Names []string
	// Given are settings without which a configuration is not valid, with their values.
	Given map[string]string
	// Parse reads a configuration with some settings, by their names. The values are written
	// as HCL: "text", 1, true, ["a"]. What was read may come with the error.
	Parse func(values map[string]string) (C, error)
	// Examples are values that are taken where none of the usual ones is.
	Examples map[string]string
	// Docs are the comments of settings that have no field.
	Docs map[string]string
	// Derived are defaults that follow from other settings, as a text.
	Derived map[string]string
}

// Table lists the settings.
func (k Keys[C]) Table(t testing.TB) string {
	t.Helper()
	p := prober[C]{Keys: k}
	var err error
	if p.base, err = k.Parse(maps.Clone(k.Given)); err != nil {
		t.Fatalf("the configuration without further settings: %v", err)
	}
	p.bare = p.base
	if len(k.Given) > 0 {
		p.bare, _ = k.Parse(nil) // without what must be given; it may be empty then
	}
	found := make([]setting, len(k.Names))
	names := map[reflect.Type]map[string]string{}
	for i, name := range k.Names {
		s := p.probe(t, name)
		found[i] = s
		if s.owner == nil || acronym.MatchString(s.field.Name) {
			continue
		}
		if names[s.owner] == nil {
			names[s.owner] = constants(t, s.owner)
		}
		if was := names[s.owner][s.field.Name]; was == "" || similarity(was, s.field.Name) <= similarity(name, s.field.Name) {
			names[s.owner][s.field.Name] = last(name)
		}
	}
	var rows [][]string
	for i, name := range k.Names {
		s := found[i]
		doc := k.Docs[name]
		if doc == "" && s.owner != nil {
			doc = FieldDoc(t, s.owner, s.field.Name)
		}
		if doc == "" {
			t.Errorf("the setting %s has no comment at its field: write one", name)
		}
		doc = internalUnit.ReplaceAllString(strings.Join(strings.Fields(doc), " "), "")
		value, derived := k.Derived[name]
		if !derived {
			value = Code(s.value)
		}
		rows = append(rows, []string{Code(name), s.kind, value, s.allowed, Reworded(doc, names[s.owner])})
	}
	return Table([]string{"Setting", "Type", "Default", "Allowed", "Meaning"}, rows)
}

// acronym is a field's name that is a word of its own in comments, as GPUs.
var acronym = regexp.MustCompile(`^[A-Z]+s$`)

// internalUnit is how a field counts what the file writes with its unit.
var internalUnit = regexp.MustCompile(`[,;]? in (?:nanoseconds|thousandths)\b`)

// constants are the values of the numeric constants beside a type.
func constants(t testing.TB, typ reflect.Type) map[string]string {
	out := map[string]string{}
	if p := sourceOf(t, typ); p != nil {
		for _, c := range p.Constants() {
			if _, err := strconv.ParseFloat(c.Value, 64); err == nil {
				out[c.Name] = c.Value
			}
		}
	}
	return out
}

// Reworded writes a comment for people who do not see the source: names of Go become those
// that the reader knows, as code.
func Reworded(doc string, names map[string]string) string {
	word := regexp.MustCompile(`[.]?\b[A-Z][A-Za-z0-9]*\b`) // what follows a dot is left as it is
	return Sentence(word.ReplaceAllStringFunc(Text(strings.Join(strings.Fields(doc), " ")), func(w string) string {
		if to, ok := names[w]; ok {
			return Code(to)
		}
		return w
	}))
}

// setting is what is known of one.
type setting struct {
	kind, value, allowed string
	owner                reflect.Type
	field                reflect.StructField
}

// kinds are the types with values that only they take; the first that takes its value is it.
var kinds = []struct {
	name          string
	takes, refuse []string
}{
	{"string", []string{`"probe"`}, []string{`""`, `"probe"`, `"a b"`}},
	{"true or false", []string{`true`, `false`}, nil},
	{"list of strings", []string{`["probe"]`, `["GPU-1"]`}, []string{`["pro be"]`, `[""]`}},
	{"list of numbers", []string{`[77]`}, []string{`[0]`}},
	{"size", []string{`"77MiB"`, `"20GiB"`}, []string{`"0B"`, `"1B"`, `"900000TiB"`}},
	{"duration", []string{`"77s"`, `"7s"`, `"7m"`}, []string{`"-1h"`, `"0s"`, `"1ns"`, `"99999h"`}},
	{"number", []string{`0.75`, `1.5`}, []string{`-1`, `0`, `1e12`}},
	{"whole number", []string{`77`, `4`, `3`, `2`, `1`}, []string{`-1`, `0`, `1000000000000`}},
}

// prober has the configuration with what must be given, and the one without.
type prober[C any] struct {
	Keys[C]
	base, bare C
}

// parse reads the configuration with one more setting.
func (p *prober[C]) parse(name, value string) (C, error) {
	values := maps.Clone(p.Given)
	if values == nil {
		values = map[string]string{}
	}
	values[name] = value
	return p.Parse(values)
}

// probe finds out about one setting.
func (p *prober[C]) probe(t testing.TB, name string) setting {
	t.Helper()
	var s setting
	try := func(value string, valid bool) bool {
		cfg, err := p.parse(name, value)
		if err != nil && (valid || reflect.ValueOf(cfg).IsZero()) {
			return false
		}
		changed := diff(reflect.ValueOf(p.base), reflect.ValueOf(cfg), change{})
		if len(changed) == 0 {
			return false
		}
		c := changed[0]
		for _, other := range changed[1:] { // what was set, and not what follows from it
			if similarity(name, other.field.Name) > similarity(name, c.field.Name) {
				c = other
			}
		}
		s.owner, s.field, s.value = c.owner, c.field, c.base
		if at, ok := c.follow(reflect.ValueOf(p.bare)); ok {
			s.value = plain(at)
		} else if _, given := p.Given[name]; given {
			s.value = ""
		}
		return true
	}
	var refuse []string
	if example, given := p.Examples[name]; given {
		if !try(example, true) {
			_, err := p.parse(name, example)
			t.Errorf("the setting %s does not take its example %s: %v", name, example, err)
		}
		s.kind, refuse = kindOf(example)
	}
	for _, valid := range []bool{true, false} { // a value may be of the right type and still be refused
		for _, kind := range kinds {
			if s.kind == "" && slices.ContainsFunc(kind.takes, func(value string) bool { return try(value, valid) }) {
				s.kind, refuse = kind.name, kind.refuse
			}
		}
	}
	if s.kind == "" {
		_, err := p.parse(name, `"probe"`)
		t.Errorf("the setting %s takes none of the usual values: give an example (%v)", name, err)
		return s
	}
	s.value = s.shown()
	s.allowed = p.allowed(name, s.field.Name, refuse)
	return s
}

// allowed is what the errors for bad values expect.
func (p *prober[C]) allowed(name, field string, bad []string) string {
	about := regexp.MustCompile(`\b(?:` + regexp.QuoteMeta(name) + `|` + regexp.QuoteMeta(last(name)) + `|` + regexp.QuoteMeta(field) + `)\b`)
	var all []string
	for _, value := range bad {
		_, err := p.parse(name, value)
		if err == nil {
			continue
		}
		for _, line := range strings.FieldsFunc(strings.ReplaceAll(err.Error(), "; ", "\n"), func(r rune) bool { return r == '\n' }) {
			at := expectations.FindStringSubmatchIndex(line)
			if at == nil || !about.MatchString(line[:at[0]]) {
				continue
			}
			text := line[max(at[2], at[4]):] // one of the two forms
			want := relation.ReplaceAllString(strings.TrimSuffix(text, "."), "")
			if rest, required := strings.CutPrefix(want, "set"); required && (rest == "" || rest[0] == ':') {
				want = "required" + rest
			}
			if strings.Count(want, ")") > strings.Count(want, "(") {
				want = strings.TrimSuffix(want, ")") // it stood in brackets
			}
			if !slices.Contains(all, want) {
				all = append(all, want)
			}
		}
	}
	return Text(strings.Join(all, "; "))
}

// expectations are how messages say what they expected.
var expectations = regexp.MustCompile(`\b(?:want|must be|must have|must hold|must|expected|expect|is|are)\b:? (required\b.*)$|\b(?:want|must be|must have|must|expected|expect)\b:? (.*)$`)

// relation is the value that another setting had by chance.
var relation = regexp.MustCompile(`, which (?:is|are) "[^"]*",?|, which (?:is|are) [^,]*$| \("?[0-9][^()]*\)`)

var sizeText = regexp.MustCompile(`^"[0-9]+[KMGT]i?B"$`)

// listed are the names at the end of the error for an unknown setting.
var listed = regexp.MustCompile(`: .*?((?:[a-z_]+, )*[a-z_]+)$`)

// Listed are the settings that the error for an unknown one lists.
func Listed(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		t.Fatal("an unknown setting is taken")
	}
	m := listed.FindStringSubmatch(err.Error())
	if m == nil {
		t.Fatalf("the error for an unknown setting lists those that are known in another form than expected: %v", err)
	}
	return strings.Split(m[1], ", ")
}

// kindOf names the type of an example, and values to try in its place.
func kindOf(example string) (string, []string) {
	switch {
	case strings.HasPrefix(example, "{"):
		return "map", nil
	case strings.HasPrefix(example, "["):
		return "list", nil
	case strings.HasPrefix(example, `"{`), strings.HasPrefix(example, `"[`):
		return "JSON", nil
	case sizeText.MatchString(example):
		return "size", []string{`"0B"`, `"1B"`, `"900000TiB"`}
	case strings.HasPrefix(example, `"`), strings.HasPrefix(example, "<<"):
		return "string", []string{`""`, `"probe"`}
	}
	return "whole number", []string{`-1`, `0`, `1000000000000`}
}

// similarity is how well a field's name fits a setting's: 2 the same, 1 the end of it.
func similarity(name, field string) int {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", ".", "").Replace(s))
	}
	n, f := plain(last(name)), plain(field)
	switch {
	case n == f:
		return 2
	case strings.HasPrefix(f, n), strings.HasSuffix(plain(name), f):
		return 1
	}
	return 0
}

// change is a field that differs.
type change struct {
	owner reflect.Type
	field reflect.StructField
	// way is how it is reached: indexes of fields and of elements.
	way  []int
	base string
}

// step goes to a field or to an element.
func (c change) step(i int) change {
	c.way = append(slices.Clone(c.way), i)
	return c
}

// follow goes to the same place in another value.
func (c change) follow(v reflect.Value) (reflect.Value, bool) {
	for _, i := range c.way {
		for v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		switch {
		case v.Kind() == reflect.Struct:
			v = v.Field(i)
		case v.Kind() == reflect.Map && i < v.Len():
			v = v.MapIndex(sortedKeys(v)[i])
		case (v.Kind() == reflect.Slice || v.Kind() == reflect.Array) && i < v.Len():
			v = v.Index(i)
		default:
			return v, false
		}
	}
	return v, v.IsValid()
}

// diff lists the innermost fields that differ.
func diff(a, b reflect.Value, at change) []change {
	leaf := func(base string, differ bool) []change {
		if at.owner == nil || !differ {
			return nil
		}
		at.base = base
		return []change{at}
	}
	if !a.IsValid() || !b.IsValid() {
		return nil
	}
	switch a.Kind() {
	case reflect.Func, reflect.Chan, reflect.Interface, reflect.UnsafePointer:
		return nil
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return leaf("", a.IsNil() != b.IsNil())
		}
		return diff(a.Elem(), b.Elem(), at)
	case reflect.Struct:
		var out []change
		for i := range a.NumField() {
			inner := at.step(i)
			inner.owner, inner.field = a.Type(), a.Type().Field(i)
			out = append(out, diff(a.Field(i), b.Field(i), inner)...)
		}
		return out
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() || a.Len() == 0 || a.Index(0).Kind() != reflect.Struct {
			return leaf(plain(a), plain(a) != plain(b))
		}
		var out []change
		for i := range a.Len() {
			out = append(out, diff(a.Index(i), b.Index(i), at.step(i))...)
		}
		return out
	case reflect.Map:
		keys := sortedKeys(a)
		if plain(a) != plain(b) && (len(keys) == 0 || !slices.EqualFunc(keys, sortedKeys(b), func(k, l reflect.Value) bool { return plain(k) == plain(l) })) || a.Type().Elem().Kind() != reflect.Struct {
			return leaf(plain(a), plain(a) != plain(b))
		}
		var out []change
		for i, key := range keys {
			out = append(out, diff(a.MapIndex(key), b.MapIndex(key), at.step(i))...)
		}
		return out
	default:
		return leaf(plain(a), plain(a) != plain(b))
	}
}

func sortedKeys(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(plain(a), plain(b)) })
	return keys
}

// plain writes a value as it would stand in a file.
func plain(v reflect.Value) string {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return Duration(time.Duration(v.Int()))
	case v.CanInterface():
		if s, ok := v.Interface().(fmt.Stringer); ok {
			return s.String()
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
		return plain(v.Elem())
	case reflect.String:
		if v.String() == "" {
			return ""
		}
		return strconv.Quote(v.String())
	case reflect.Slice:
		if v.Len() == 0 {
			return "[]"
		}
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = plain(v.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Map:
		if v.Len() == 0 {
			return "{}"
		}
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// shown writes a default as the setting's type has it.
func (s setting) shown() string {
	n, err := strconv.ParseFloat(s.value, 64)
	switch {
	case s.kind == "JSON" || s.kind == "map":
		return ""
	case err != nil && s.kind == "duration" && s.value != "":
		return strconv.Quote(s.value)
	case err != nil:
		return s.value
	case s.kind == "size":
		return strconv.Quote(Size(n))
	case s.kind == "duration" && strings.HasSuffix(s.field.Name, "Seconds"):
		return strconv.Quote(Duration(time.Duration(n * float64(time.Second))))
	}
	return s.value
}

// Duration writes a time without its zeros.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Size writes a number of bytes in the unit that makes it shortest.
func Size(n float64) string {
	best := fmt.Sprintf("%.0fB", n)
	for _, u := range []struct {
		name string
		size float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}} {
		if v := n / u.size; v >= 1 && v == math.Trunc(v) {
			if s := fmt.Sprintf("%.0f%s", v, u.name); len(s) < len(best) {
				best = s
			}
		}
	}
	return best
}
