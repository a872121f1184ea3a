package pipeline

import (
	"strings"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are those of expressions: a small set whose names and meaning are Terraform's
// and Nomad's. None of them reads a file, a clock or the environment, none writes a number
// of unbounded length, and the work of each is in proportion to what it is given.
var functions = map[string]function.Function{
	// Texts.
	"chomp":       stdlib.ChompFunc,
	"endswith":    textTest("Reports whether a string ends with another.", strings.HasSuffix),
	"indent":      stdlib.IndentFunc,
	"join":        stdlib.JoinFunc,
	"lower":       stdlib.LowerFunc,
	"regex":       stdlib.RegexFunc,
	"regexall":    stdlib.RegexAllFunc,
	"replace":     stdlib.ReplaceFunc,
	"split":       stdlib.SplitFunc,
	"startswith":  textTest("Reports whether a string begins with another.", strings.HasPrefix),
	"strcontains": textTest("Reports whether a string contains another.", strings.Contains),
	"strlen":      stdlib.StrlenFunc,
	"substr":      stdlib.SubstrFunc,
	"title":       stdlib.TitleFunc,
	"trim":        stdlib.TrimFunc,
	"trimprefix":  stdlib.TrimPrefixFunc,
	"trimspace":   stdlib.TrimSpaceFunc,
	"trimsuffix":  stdlib.TrimSuffixFunc,
	"upper":       stdlib.UpperFunc,
	// Lists and maps.
	"compact":  stdlib.CompactFunc,
	"concat":   stdlib.ConcatFunc,
	"contains": stdlib.ContainsFunc,
	"distinct": stdlib.DistinctFunc,
	"element":  stdlib.ElementFunc,
	"flatten":  stdlib.FlattenFunc,
	"keys":     stdlib.KeysFunc,
	"length":   stdlib.LengthFunc,
	"lookup":   stdlib.LookupFunc,
	"merge":    stdlib.MergeFunc,
	"reverse":  stdlib.ReverseListFunc,
	"slice":    stdlib.SliceFunc,
	"sort":     stdlib.SortFunc,
	"values":   stdlib.ValuesFunc,
	// Numbers.
	"ceil":  stdlib.CeilFunc,
	"floor": stdlib.FloorFunc,
	"max":   stdlib.MaxFunc,
	"min":   stdlib.MinFunc,
	// What may be missing, and other forms.
	"can":        tryfunc.CanFunc,
	"coalesce":   stdlib.CoalesceFunc,
	"jsondecode": jsonDecode,
	"jsonencode": stdlib.JSONEncodeFunc,
	"tobool":     stdlib.MakeToFunc(cty.Bool),
	"tonumber":   toNumber,
	"tostring":   stdlib.MakeToFunc(cty.String),
	"try":        tryfunc.TryFunc,
}

func textTest(about string, test func(s, part string) bool) function.Function {
	return function.New(&function.Spec{
		Description: about,
		Params:      []function.Parameter{{Name: "text", Type: cty.String}, {Name: "part", Type: cty.String}},
		Type:        function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(test(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

// jsonDecode bounds what stdlib's does not: depth and numbers. The text is a model's.
var jsonDecode = function.New(&function.Spec{
	Description: "Parses a JSON string.",
	Params:      []function.Parameter{{Name: "text", Type: cty.String}},
	Type: func(args []cty.Value) (cty.Type, error) {
		if !args[0].IsKnown() {
			return cty.DynamicPseudoType, nil
		}
		v, err := fromJSON([]byte(args[0].AsString()))
		if err != nil {
			return cty.NilType, function.NewArgError(0, err)
		}
		return v.Type(), nil
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) { return fromJSON([]byte(args[0].AsString())) },
})

// toNumber bounds numbers likewise.
var toNumber = function.New(&function.Spec{
	Description: "Parses a number from a string.",
	Params:      []function.Parameter{{Name: "text", Type: cty.String}},
	Type:        function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		v, err := number(strings.TrimSpace(args[0].AsString()))
		if err != nil {
			return cty.UnknownVal(cty.Number), function.NewArgError(0, err)
		}
		return v, nil
	},
})
