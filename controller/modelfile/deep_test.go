package modelfile_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
)

// TestDeepFiles: a file that would overflow the stack of HCL's parser is refused.
func TestDeepFiles(t *testing.T) {
	deep := strings.Repeat("(", 500_000)
	model := func(job, vars string) string {
		return "model \"m\" {\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"a.hcl\"\nvars = { x = \"" + vars + "\" }\n}\n}\n"
	}
	for name, tc := range map[string]struct{ src, job, want string }{
		"the model file": {"a = " + deep, "", "m.hcl:1:205: nested too deeply"},
		"the job file":   {model("", "1"), "a = " + deep, "a.hcl:1:205: model \"m\": variant \"v\": job: nested too deeply"},
		"a variable":     {model("", deep), "variable \"x\" {\ntype = list(string)\n}\njob \"a\" {}\n", "must be a list or an object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := modelfile.Parse("m.hcl", []byte(tc.src), func(string) ([]byte, error) { return []byte(tc.job), nil })
			require.ErrorContains(t, err, tc.want)
		})
	}
}
