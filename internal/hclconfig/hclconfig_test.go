package hclconfig_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/hclconfig"
)

// config has a setting of each kind.
type config struct {
	Name  string
	List  []string
	On    bool
	Wait  time.Duration
	Count int
	Size  uint64
}

var settings = []hclconfig.Setting[config]{
	{Name: "name", Set: hclconfig.Text(func(c *config) *string { return &c.Name })},
	{Name: "list", Set: hclconfig.Texts(func(c *config) *[]string { return &c.List })},
	{Block: "b", Name: "on", Set: hclconfig.Bool(func(c *config) *bool { return &c.On })},
	{Block: "b", Name: "wait", Set: hclconfig.Duration(func(c *config) *time.Duration { return &c.Wait })},
	{Block: "c", Name: "count", Set: hclconfig.Count(func(c *config) *int { return &c.Count })},
	{Block: "c", Name: "size", Set: hclconfig.Count(func(c *config) *uint64 { return &c.Size })},
}

func check(c config) []hclconfig.Problem {
	var out []hclconfig.Problem
	if c.Name == "" {
		out = append(out, hclconfig.Problem{Field: "name", Text: "must be set"})
	}
	if c.Count > 10 {
		out = append(out, hclconfig.Problem{Field: "c.count", Text: "is too much"})
	}
	if c.On && c.Wait == 0 {
		out = append(out, hclconfig.Problem{Field: "b.wait", Text: "must be set", Blame: []string{"b.on"}})
	}
	return out
}

func TestParse(t *testing.T) {
	base := config{Name: "old", Wait: time.Second, Count: 3}
	got, err := hclconfig.Parse("f.hcl", []byte("list = [\"a\", \"b\"]\nb {\n on = true\n}\nc {\n size = 18\n}\n"), base, settings, check)
	require.NoError(t, err)
	require.Equal(t, config{Name: "old", List: []string{"a", "b"}, On: true, Wait: time.Second, Count: 3, Size: 18}, got)

	for name, tc := range map[string]struct {
		src  string
		want []string
	}{
		"syntax":        {"name = \n", []string{"f.hcl:1: "}},
		"unknown names": {"nam = 1\nx {}\nb {\n off = 1\n}", []string{"f.hcl:1: unsupported argument", "f.hcl:2: unsupported block type", "f.hcl:4: unsupported argument", "f.hcl:1: name must be set"}},
		"wrong types": {
			"name = 1\nlist = \"a\"\nb {\n on = \"yes\"\n wait = 5\n}\nc {\n count = \"1\"\n size = 1.5\n}",
			[]string{"f.hcl:1: name is no string", "f.hcl:2: list is no list of strings", "f.hcl:4: b.on is neither", "f.hcl:5: b.wait is no string", "f.hcl:8: c.count is no whole", "f.hcl:9: c.size is no whole"},
		},
		"wrong elements": {"name = \"x\"\nlist = [1]", []string{"f.hcl:2: list is no list of strings"}},
		"nulls":          {"name = null\nlist = null\nb {\n on = null\n}\nc {\n count = null\n}", []string{"f.hcl:1: name is no", "f.hcl:2: list is no", "f.hcl:4: b.on is", "f.hcl:7: c.count is"}},
		"out of range":   {"name = \"x\"\nc {\n count = 9223372036854775808\n size = -1\n}", []string{"f.hcl:3: c.count is out of range", "f.hcl:4: c.size is out of range"}},
		"what is read is checked, and shown where it stands": {"name = \"x\"\nc {\n count = 11\n}\nb {\n on = true\n}", []string{"f.hcl:3: c.count is too much", "f.hcl:6: b.wait must be set"}},
		"a block twice": {"name = \"x\"\nb {}\nb {}", []string{"f.hcl:3: a second b block, the first is on line 2"}},
		"a variable":    {"name = x", []string{"f.hcl:1: variables not allowed"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := hclconfig.Parse("f.hcl", []byte(tc.src), config{}, settings, check)
			require.Error(t, err)
			lines := strings.Split(err.Error(), "\n")
			require.Len(t, lines, len(tc.want), err)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// FuzzParse: any bytes are read or refused, and what is read has passed the check.
func FuzzParse(f *testing.F) {
	f.Add([]byte("name = \"a\"\nlist = [\"b\"]\nc {\n count = 10\n size = 18446744073709551615\n}"))
	f.Add([]byte("name = \"${1}\"\nlist = [for x in [1]: x]\nb {\n wait = \"1e400s\"\n}"))
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := hclconfig.Parse("f.hcl", src, config{}, settings, check)
		if err != nil {
			if err.Error() == "" || errors.Unwrap(err) != nil {
				t.Fatalf("an empty error for %q", src)
			}
			return
		}
		if got := check(c); got != nil {
			t.Fatalf("%q is taken with %v", src, got)
		}
	})
}
