package reference

import (
	"reflect"
	"slices"
	"strings"

	"remuda/internal/hclconfig"
)

// HCL writes settings by their names, of which "a.b.c" is c in the block b in the block a.
func HCL(values map[string]string) string {
	var attributes, blocks []string
	inside := map[string]map[string]string{}
	for name, value := range values {
		block, rest, nested := strings.Cut(name, ".")
		switch {
		case name == "":
		case !nested:
			attributes = append(attributes, name+" = "+value+"\n")
		case inside[block] == nil:
			inside[block] = map[string]string{rest: value}
		default:
			inside[block][rest] = value
		}
	}
	for block, values := range inside {
		blocks = append(blocks, block+" {\n"+HCL(values)+"}\n")
	}
	slices.Sort(attributes)
	slices.Sort(blocks)
	return strings.Join(append(attributes, blocks...), "")
}

// Names are the names of the settings of a config file or a block, by the hcl tags of its
// struct: in their order, those of its blocks last. Blocks with labels are left out.
func Names[C any]() []string { return names(reflect.New(reflect.TypeFor[C]()).Elem()) }

func names(block reflect.Value) []string {
	var own, inner []string
	hclconfig.Settings(block, func(name, kind string, field reflect.Value) {
		switch kind {
		case "", "optional", "size":
			own = append(own, name)
		case "block":
			if field.Kind() == reflect.Pointer {
				field = reflect.New(field.Type().Elem()).Elem()
			}
			if field.Kind() == reflect.Struct {
				for _, n := range names(field) {
					inner = append(inner, name+"."+n)
				}
			}
		}
	})
	return append(own, inner...)
}
