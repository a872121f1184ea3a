package hclconfig_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/hclconfig"
	"remuda/internal/hclfault"
)

// config has a setting of each kind.
type config struct {
	Name string   `hcl:"name"`
	List []string `hcl:"list"`
	B    struct {
		On   bool          `hcl:"on"`
		Wait time.Duration `hcl:"wait"`
	} `hcl:"b,block"`
	C struct {
		Count int    `hcl:"count"`
		Size  uint64 `hcl:"size"`
		Bytes int64  `hcl:"bytes,size"`
	} `hcl:"c,block"`
	Ignored func()
}

func check(c config) hclfault.Problems {
	var out hclfault.Problems
	if c.Name == "" {
		out.Add("name", "must be set")
	}
	if c.C.Count > 10 {
		out.Add("c.count", "is too much")
	}
	if c.B.On && c.B.Wait == 0 {
		out.Add("b.wait", "must be set")
		out.Blame("b.on")
	}
	return out
}

func TestParse(t *testing.T) {
	base := config{Name: "old"}
	base.B.Wait, base.C.Count = time.Second, 3
	got, err := hclconfig.Parse("f.hcl", []byte("list = [\"a\", \"b\"]\nb {\n on = true\n}\nc {\n size = 18\n bytes = \"2KiB\"\n}\n"), base, check)
	require.NoError(t, err)
	want := base
	want.List, want.B.On, want.C.Size, want.C.Bytes = []string{"a", "b"}, true, 18, 2048
	require.Equal(t, want, got)

	for name, tc := range map[string]struct {
		src  string
		want []string
	}{
		"syntax":        {"name = \n", []string{"f.hcl:1:8: "}},
		"unknown names": {"nam = 1\nx {}\nb {\n off = 1\n}", []string{"f.hcl:1:1: unsupported argument", "f.hcl:1:1: name must be set", "f.hcl:2:1: unsupported block type", "f.hcl:4:2: unsupported argument"}},
		"wrong types": {
			"name = 1\nlist = \"a\"\nb {\n on = \"yes\"\n wait = 5\n}\nc {\n count = \"1\"\n size = 1.5\n}",
			[]string{"f.hcl:1:8: name is 1: must be a string", "f.hcl:2:8: list is \"a\": must be a list of strings", "f.hcl:4:7: b.on is \"yes\": must be true or false", "f.hcl:5:9: b.wait is 5: must be a duration", "f.hcl:8:10: c.count is \"1\": must be a whole", "f.hcl:9:9: c.size is 1.5: must be a whole"},
		},
		"wrong elements": {"name = \"x\"\nlist = [1]", []string{"f.hcl:2:8: list is a list: must be a list of strings"}},
		"nulls":          {"name = null\nlist = null\nb {\n on = null\n}\nc {\n count = null\n}", []string{"f.hcl:1:8: name is null: must be", "f.hcl:2:8: list is null: must be", "f.hcl:4:7: b.on is null: must be", "f.hcl:7:10: c.count is null: must be"}},
		"out of range":   {"name = \"x\"\nc {\n count = 9223372036854775808\n size = -1\n}", []string{"f.hcl:3:10: c.count is 9223372036854775808: must be a whole", "f.hcl:4:9: c.size is -1: must be a whole number, 0 or more"}},
		"what is read is checked, and shown where it stands": {"name = \"x\"\nc {\n count = 11\n}\nb {\n on = true\n}", []string{"f.hcl:3:2: c.count is too much", "f.hcl:6:2: b.wait must be set"}},
		"a block twice": {"name = \"x\"\nb {}\nb {}", []string{"f.hcl:3:1: duplicate b block: first defined on line 2"}},
		"a variable":    {"name = x", []string{"f.hcl:1:8: name is not a constant: must be a string"}},
		"sizes":         {"name = \"x\"\nc {\n bytes = \"5 pounds\"\n}", []string{`f.hcl:3:10: c.bytes is "5 pounds": must be a number of bytes or a size such as "32MiB"`}},
		"nested deeply": {"name = " + strings.Repeat("(", 200_000), []string{"f.hcl:1:208: nested too deeply"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := hclconfig.Parse("f.hcl", []byte(tc.src), config{}, check)
			require.Error(t, err)
			lines := strings.Split(err.Error(), "\n")
			require.Len(t, lines, len(tc.want), err)
			for i, want := range tc.want {
				require.Contains(t, lines[i], want)
			}
		})
	}
}

// deep has a block in a block, and blocks with labels.
type deep struct {
	Price float64 `hcl:"price"`
	A     struct {
		B struct {
			Wait time.Duration `hcl:"wait"`
		} `hcl:"b,block"`
	} `hcl:"a,block"`
	Pools []pool `hcl:"pool,block"`
}

type pool struct {
	Name string `hcl:"name,label"`
	At   struct {
		Address string `hcl:"address"`
	} `hcl:"at,block"`
	Costs costs `hcl:",remain"`
}

type costs struct {
	Price float64 `hcl:"price"`
}

func (p *pool) SetDefaults(c *deep) { p.Costs.Price = c.Price }

func checkDeep(c deep) hclfault.Problems {
	var out hclfault.Problems
	for _, p := range c.Pools {
		if p.At.Address == "" {
			out.Add(hclconfig.Title("pool", p.Name)+".at.address", "must be set")
			out.Blame(hclconfig.Title("pool", p.Name))
		}
	}
	return out
}

func TestParseDeep(t *testing.T) {
	src := "price = 0.5\na {\n b {\n  wait = \"3s\"\n }\n}\npool \"x\" {\n price = 2\n at {\n  address = \"h\"\n }\n}\npool \"y\" {\n at {\n  address = \"i\"\n }\n}\n"
	base := deep{Pools: make([]pool, 0, 8)}
	got, err := hclconfig.Parse("f.hcl", []byte(src), base, checkDeep)
	require.NoError(t, err)
	require.Equal(t, 0.5, got.Price)
	require.Equal(t, 3*time.Second, got.A.B.Wait)
	require.Len(t, got.Pools, 2)
	x, y := got.Pools[0], got.Pools[1]
	require.Equal(t, []any{"x", "h", 2.0, "y", "i", 0.5}, []any{x.Name, x.At.Address, x.Costs.Price, y.Name, y.At.Address, y.Costs.Price})
	require.Zero(t, base.Pools[:1][0], "the base is unchanged")

	for name, tc := range map[string]struct {
		src  string
		want []string
	}{
		"no numbers": {"price = \"1\"\n", []string{`f.hcl:1:9: price is "1": must be a number`}},
		"too large":  {"price = 1e400\n", []string{"f.hcl:1:9: price is 1e+400: must be a number"}},
		"inside out": {"b {\n}\na {\n wait = \"1s\"\n}\n", []string{"f.hcl:1:1: unsupported block type", "f.hcl:4:2: unsupported argument"}},
		"twice": {
			"a {\n b {\n }\n b {\n }\n}\npool \"x\" {\n at {\n  address = \"h\"\n }\n}\npool \"x\" {\n}\n",
			[]string{"f.hcl:4:2: duplicate a.b block: first defined on line 2", `f.hcl:12:1: duplicate pool "x" block: first defined on line 7`},
		},
		"no label":  {"pool {\n}\n", []string{"f.hcl:1:6: missing name for pool"}},
		"one label": {"pool \"x\" \"y\" {\n}\n", []string{"f.hcl:1:10: extraneous label for pool"}},
		"in a pool": {
			"pool \"x\" {\n price = true\n at {\n  port = 1\n }\n pool \"y\" {\n }\n}\n",
			[]string{`f.hcl:2:10: pool "x".price is true: must be a number`, "f.hcl:4:3: unsupported argument", "f.hcl:6:2: unsupported block type", `f.hcl:1:1: pool "x".at.address must be set`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := hclconfig.Parse("f.hcl", []byte(tc.src), deep{}, checkDeep)
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
		c, err := hclconfig.Parse("f.hcl", src, config{}, check)
		if err != nil {
			if err.Error() == "" || !errors.Is(err, hclconfig.ErrInvalid) {
				t.Fatalf("an empty error for %q", src)
			}
			return
		}
		if got := check(c); got != nil {
			t.Fatalf("%q is taken with %v", src, got)
		}
	})
}
