package reference

import (
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

// Names are the names of the settings of a config file, in their order, each block's together.
func Names[C any](settings []hclconfig.Setting[C]) []string {
	var blocks []string
	byBlock := map[string][]string{}
	for _, s := range settings {
		if byBlock[s.Block] == nil {
			blocks = append(blocks, s.Block)
		}
		byBlock[s.Block] = append(byBlock[s.Block], strings.TrimPrefix(s.Block+"."+s.Name, "."))
	}
	var out []string
	for _, b := range blocks {
		out = append(out, byBlock[b]...)
	}
	return out
}
