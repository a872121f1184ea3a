package pipeline

import (
	"errors"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// ErrInvalid is wrapped by every error that says that a pipeline file is wrong.
var ErrInvalid = errors.New("invalid pipeline file")

// sentence is what a diagnostic says, in one line.
func sentence(d *hcl.Diagnostic) string {
	text := d.Summary
	if text != "" {
		text = strings.ToLower(text[:1]) + text[1:]
	}
	return strings.Join(strings.Fields(text+": "+d.Detail), " ")
}
