// Package hclconfig reads a daemon's HCL config file into its Config, by struct tags as
// package gohcl has them, all settings being optional:
//
//	Drain  time.Duration `hcl:"drain"`       // a duration such as "90s"
//	Body   int64         `hcl:"body,size"`   // a number of bytes or a size such as "32MiB"
//	Limits Limits        `hcl:"limits,block"` // at most one block
//	Pools  []Pool        `hcl:"pool,block"`  // any number of blocks, each with its own label
//	Name   string        `hcl:"name,label"`  // the label, in the struct of such a block
//	Common Common        `hcl:",remain"`     // settings of the same block in another struct
//
// gohcl itself knows no durations and no sizes, keeps no defaults of a block, and its
// messages do not name the setting.
//
// It guarantees that a file is either read whole or refused with every fault that it has,
// each with its file, line and column; and that a setting which is not in the file keeps
// its default.
package hclconfig

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"remuda/internal/bytesize"
	"remuda/internal/hclfault"
)

// ErrInvalid is wrapped by every error about the content of a config file.
var ErrInvalid = errors.New("invalid config file")

// maxFile is far more than people write.
const maxFile = 1 << 20

// Defaulter is a struct of labelled blocks with defaults. SetDefaults is called before the
// block is read; config has what stands in the fields before that of the blocks.
type Defaulter[C any] interface{ SetDefaults(config *C) }

// Parse reads a file over base. problems returns what is wrong with a config whose settings
// have been read; a setting that cannot be read keeps its value from base. filename is for
// messages only.
func Parse[C any](filename string, src []byte, base C, problems func(C) hclfault.Problems) (C, error) {
	d := decoder[C]{
		Collector: hclfault.Collector{File: filename}, config: &base,
		ranges: map[string]hcl.Range{}, failed: map[string]bool{},
	}
	if body := d.Body(src, maxFile); body != nil {
		d.block("", body, reflect.ValueOf(&base).Elem())
		for _, bad := range problems(base) {
			if d.failed[bad.Field] {
				continue // reported already
			}
			var at hcl.Range // the file's start, where something is missing
			for _, field := range append([]string{bad.Field}, bad.Blame...) {
				if r, ok := d.ranges[field]; ok {
					at = r
					break
				}
			}
			d.Add(at, "%s %s", bad.Field, bad.Text)
		}
	}
	return base, d.Err(ErrInvalid)
}

type decoder[C any] struct {
	hclfault.Collector
	config *C
	// ranges are of the settings and blocks in the file, failed those that cannot be read.
	ranges map[string]hcl.Range
	failed map[string]bool
}

// Settings calls f for each tagged field of a block's struct, in order.
func Settings(block reflect.Value, f func(name, kind string, field reflect.Value)) {
	for i := range block.NumField() {
		tag, tagged := block.Type().Field(i).Tag.Lookup("hcl")
		switch name, kind, _ := strings.Cut(tag, ","); {
		case !tagged:
		case kind == "remain" && block.Field(i).Kind() == reflect.Map: // settings of any name
		case kind == "remain":
			Settings(block.Field(i), f)
		default:
			f(name, kind, block.Field(i))
		}
	}
}

// block reads a body into its struct. prefix is of its settings' names.
func (d *decoder[C]) block(prefix string, body hcl.Body, into reflect.Value) {
	schema := &hcl.BodySchema{}
	Settings(into, func(name, kind string, field reflect.Value) {
		switch {
		case kind == "label":
		case kind != "block":
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
		case field.Kind() == reflect.Slice:
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: name, LabelNames: []string{"name"}})
		default:
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: name})
		}
	})
	content, diags := body.Content(schema)
	d.Diagnostics("", diags)
	blocks := content.Blocks.ByType()
	Settings(into, func(name, kind string, field reflect.Value) {
		if kind != "block" {
			d.setting(prefix, content.Attributes[name], kind, field)
		}
		for _, b := range blocks[name] {
			d.inner(prefix, b, field)
		}
	})
}

// inner reads a block in a block.
func (d *decoder[C]) inner(prefix string, b *hcl.Block, field reflect.Value) {
	title := prefix + b.Type
	if len(b.Labels) == 1 {
		title = Title(b.Type, b.Labels[0])
	}
	if first, dup := d.ranges[title]; dup {
		d.Add(b.DefRange, "duplicate %s block: first defined on line %d: join them", title, first.Start.Line)
		return
	}
	d.ranges[title] = b.DefRange
	if len(b.Labels) == 0 {
		d.block(title+".", b.Body, field)
		return
	}
	one := reflect.New(field.Type().Elem())
	if o, ok := one.Interface().(Defaulter[C]); ok {
		o.SetDefaults(d.config)
	}
	Settings(one.Elem(), func(_, kind string, label reflect.Value) {
		if kind == "label" {
			label.SetString(b.Labels[0])
		}
	})
	d.block(title+".", b.Body, one.Elem())
	field.Set(reflect.Append(field.Slice3(0, field.Len(), field.Len()), one.Elem())) // base keeps its own
}

// Title is the name of a labelled block, as `pool "x"`. Its settings are named
// `pool "x".price`.
func Title(kind, label string) string { return fmt.Sprintf("%s %q", kind, label) }

// wants are what messages expect of a setting, by its type.
var wants = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Bool: "true or false", reflect.Slice: `a list of strings such as ["a", "b"]`,
	reflect.Int: "a whole number", reflect.Int64: "a whole number", reflect.Uint64: "a whole number, 0 or more", reflect.Float64: "a number",
}

func (d *decoder[C]) setting(prefix string, attr *hcl.Attribute, kind string, to reflect.Value) {
	if attr == nil {
		return
	}
	d.ranges[prefix+attr.Name] = attr.Range
	var ok bool
	switch {
	case to.Type() == reflect.TypeFor[time.Duration]():
		ok = text(d, prefix, attr, to, `a duration such as "90s"`, time.ParseDuration)
	case kind == "size" && isNumber(attr):
		ok = d.Read(prefix, attr, to.Addr().Interface(), wantSize)
	case kind == "size":
		ok = text(d, prefix, attr, to, wantSize, bytesize.Parse)
	default:
		ok = d.Read(prefix, attr, to.Addr().Interface(), wants[to.Kind()])
	}
	if !ok {
		d.failed[prefix+attr.Name] = true
	}
}

const wantSize = `a number of bytes or a size such as "32MiB"`

// text reads a setting that is written as a string.
func text[C any, V ~int64](d *decoder[C], prefix string, attr *hcl.Attribute, to reflect.Value, want string, parse func(string) (V, error)) bool {
	var s string
	if !d.Read(prefix, attr, &s, want) {
		return false
	}
	v, err := parse(s)
	if err != nil {
		d.Add(attr.Expr.Range(), "%s%s is %q: must be %s", prefix, attr.Name, hclfault.Clip(s), want)
		return false
	}
	to.SetInt(int64(v))
	return true
}

func isNumber(attr *hcl.Attribute) bool {
	v, diags := attr.Expr.Value(nil)
	return !diags.HasErrors() && v.Type() == cty.Number
}
