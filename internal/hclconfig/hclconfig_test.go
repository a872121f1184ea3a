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
			[]string{"f.hcl:1: name must be a string", "f.hcl:2: list must be a list of strings", "f.hcl:4: b.on must be true or false", "f.hcl:5: b.wait must be a duration", "f.hcl:8: c.count must be a whole", "f.hcl:9: c.size must be a whole"},
		},
		"wrong elements": {"name = \"x\"\nlist = [1]", []string{"f.hcl:2: list must be a list of strings"}},
		"nulls":          {"name = null\nlist = null\nb {\n on = null\n}\nc {\n count = null\n}", []string{"f.hcl:1: name must be", "f.hcl:2: list must be", "f.hcl:4: b.on must be", "f.hcl:7: c.count must be"}},
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

// deep has a block in a block, and blocks with labels.
type deep struct {
	Price float64
	Wait  time.Duration
	Pools []pool
}

type pool struct {
	Name, Address string
	Price         float64
}

var deepSettings = []hclconfig.Setting[deep]{
	{Name: "price", Set: hclconfig.Float(func(c *deep) *float64 { return &c.Price })},
	{Block: "a.b", Name: "wait", Set: hclconfig.Duration(func(c *deep) *time.Duration { return &c.Wait })},
}

var pools = hclconfig.Labelled[deep]{
	Type: "pool",
	Open: func(c *deep, label string) { c.Pools = append(c.Pools, pool{Name: label}) },
	Settings: func(string) []hclconfig.Setting[deep] {
		of := func(c *deep) *pool { return &c.Pools[len(c.Pools)-1] }
		return []hclconfig.Setting[deep]{
			{Name: "price", Set: hclconfig.Float(func(c *deep) *float64 { return &of(c).Price })},
			{Block: "at", Name: "address", Set: hclconfig.Text(func(c *deep) *string { return &of(c).Address })},
		}
	},
}

func checkDeep(c deep) []hclconfig.Problem {
	var out []hclconfig.Problem
	for _, p := range c.Pools {
		if p.Address == "" {
			out = append(out, hclconfig.Problem{Field: hclconfig.LabelledField("pool", p.Name, "at.address"), Text: "must be set", Blame: []string{`pool "` + p.Name + `"`}})
		}
	}
	return out
}

func TestParseDeep(t *testing.T) {
	src := "price = 0.5\na {\n b {\n  wait = \"3s\"\n }\n}\npool \"x\" {\n price = 2\n at {\n  address = \"h\"\n }\n}\npool \"y\" {\n at {\n  address = \"i\"\n }\n}\n"
	got, err := hclconfig.Parse("f.hcl", []byte(src), deep{}, deepSettings, checkDeep, pools)
	require.NoError(t, err)
	require.Equal(t, deep{Price: 0.5, Wait: 3 * time.Second, Pools: []pool{{"x", "h", 2}, {"y", "i", 0}}}, got)

	for name, tc := range map[string]struct {
		src  string
		want []string
	}{
		"no numbers": {"price = \"1\"\n", []string{"f.hcl:1: price is no number"}},
		"too large":  {"price = 1e400\n", []string{"f.hcl:1: price is out of range"}},
		"inside out": {"b {\n}\na {\n wait = \"1s\"\n}\n", []string{"f.hcl:1: unsupported block type", "f.hcl:4: unsupported argument"}},
		"twice": {
			"a {\n b {\n }\n b {\n }\n}\npool \"x\" {\n at {\n  address = \"h\"\n }\n}\npool \"x\" {\n}\n",
			[]string{"f.hcl:4: a second b block, the first is on line 2", `f.hcl:12: a second pool "x" block, the first is on line 7`},
		},
		"no label":  {"pool {\n}\n", []string{"f.hcl:1: missing name for pool"}},
		"one label": {"pool \"x\" \"y\" {\n}\n", []string{"f.hcl:1: extraneous label for pool"}},
		"in a pool": {
			"pool \"x\" {\n price = true\n at {\n  port = 1\n }\n pool \"y\" {\n }\n}\n",
			[]string{`f.hcl:2: pool "x".price is no number`, "f.hcl:4: unsupported argument", "f.hcl:6: unsupported block type", `f.hcl:1: pool "x".at.address must be set`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := hclconfig.Parse("f.hcl", []byte(tc.src), deep{}, deepSettings, checkDeep, pools)
			require.Error(t, err)
			require.Len(t, strings.Split(err.Error(), "\n"), len(tc.want), err)
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
