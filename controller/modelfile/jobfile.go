package modelfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"remuda/internal/hclfault"
)

// maxJob is what Nomad itself keeps of a job's source at most by default.
const maxJob = 1 << 20

// Reserved variables of job files. A job file that declares one of them gets its
// value from the controller; a model file must not set them.
const (
	VarModel   = "remuda_model"   // the model's name
	VarVariant = "remuda_variant" // the variant's name
	VarReplica = "remuda_replica" // the replica's whole name, <model>:<variant>:<id>
	VarGPUs    = "remuda_gpus"    // GPUs per engine
	VarReach   = "remuda_reach"   // GPUs on which an engine has a seat, at least as many as remuda_gpus
	VarSlots   = "remuda_slots"   // the variant's slots, 0 where the engine says
)

// ReservedVars lists the reserved variables.
func ReservedVars() []string {
	return []string{VarModel, VarVariant, VarReplica, VarGPUs, VarReach, VarSlots}
}

// JobVariable is a variable that a job file declares.
type JobVariable struct {
	Name string
	// Required: it has no default.
	Required bool
	// Composite: its value is a list, set, map, object or tuple, and is written as
	// an HCL expression.
	Composite bool
	Range     hcl.Range
}

// JobVariables finds the variables of a Nomad job file in the order of the file. It
// checks the file's syntax and that it has one job, and no more than that: the rest
// is Nomad's.
func JobVariables(filename, source string) ([]JobVariable, hcl.Diagnostics) {
	body, diags := hclfault.Parse([]byte(source), filename)
	if diags.HasErrors() {
		return nil, diags
	}
	var (
		vars []JobVariable
		jobs int
	)
	fault := func(at hcl.Range, summary, format string, args ...any) {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Subject: &at, Summary: summary, Detail: fmt.Sprintf(format, args...)})
	}
	for _, b := range body.Blocks {
		switch b.Type {
		case "job":
			if jobs++; jobs > 1 {
				fault(b.DefRange(), "second job", "A job file has one job block.")
			}
		case "variable":
			if len(b.Labels) != 1 {
				fault(b.DefRange(), "bad variable", "A variable block has one label, its name.")
				continue
			}
			v := JobVariable{Name: b.Labels[0], Required: b.Body.Attributes["default"] == nil, Range: b.DefRange()}
			v.Composite = composite(b.Body)
			vars = append(vars, v)
		}
	}
	if jobs == 0 {
		fault(hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}, "no job", "A job file has one job block.")
	}
	return vars, diags
}

// composite reads a variable's kind off its type, or without one off its default.
func composite(body *hclsyntax.Body) bool {
	if attr := body.Attributes["type"]; attr != nil {
		call, ok := attr.Expr.(*hclsyntax.FunctionCallExpr)
		return ok && slices.Contains([]string{"list", "set", "map", "object", "tuple"}, call.Name)
	}
	if attr := body.Attributes["default"]; attr != nil {
		v, diags := attr.Expr.Value(nil)
		return !diags.HasErrors() && v.Type() != cty.DynamicPseudoType && !v.Type().IsPrimitiveType()
	}
	return false
}

// tidyJob makes what does not matter in a job file the same everywhere: line ends,
// and a newline at the end.
func tidyJob(source string) string {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	if !strings.HasSuffix(source, "\n") {
		source += "\n"
	}
	return source
}

// jobEssence is a job file without its comments, blank lines and spacing, so that
// reformatting it restarts no replica. A file that cannot be read is its own essence.
func jobEssence(source string) []string {
	tokens, diags := hclsyntax.LexConfig([]byte(source), "", hcl.InitialPos)
	if diags.HasErrors() {
		return []string{source}
	}
	var out []string
	newline := true // at the start, newlines say nothing
	for _, t := range tokens {
		text := string(t.Bytes)
		switch t.Type {
		case hclsyntax.TokenComment:
			if !strings.HasSuffix(text, "\n") {
				continue
			}
			text = "\n" // a line comment ends its line
		case hclsyntax.TokenNewline:
			text = "\n"
		case hclsyntax.TokenEOF:
			continue
		}
		if text == "\n" && (t.Type == hclsyntax.TokenNewline || t.Type == hclsyntax.TokenComment) {
			if !newline {
				out = append(out, text)
			}
			newline = true
			continue
		}
		newline = false
		out = append(out, text)
	}
	return out
}
