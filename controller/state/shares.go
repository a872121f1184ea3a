package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Share is how many replicas of a model should run in one pool, of one variant.
type Share struct {
	// Pool is an external capacity pool (Node.CapacityPool): the replicas are placed there
	// and nowhere else. Empty: the controller's own Nomad, or the pool that takes what it
	// has no room for.
	Pool string `json:",omitempty"`
	// Variant, empty: any of the variants that have no share of their own, the cheapest
	// that fits.
	Variant  string `json:",omitempty"`
	Replicas int
}

// Shares are how many replicas of a model should run, all of them. They are sorted by
// pool and variant, and no pair is in them twice. A variant with a share has one in the own
// pool, which may be 0; all others are 1 or more. Where each variant has a share of its own,
// there is none of any variant.
type Shares []Share

// Any returns n replicas of any variant in the own pool.
func Any(n int) Shares {
	if n == 0 {
		return nil
	}
	return Shares{{Replicas: n}}
}

// Total returns how many replicas the shares are together.
func (s Shares) Total() int {
	n := 0
	for _, one := range s {
		n += one.Replicas
	}
	return n
}

// Of returns how many replicas are the variant's own in all pools, and whether it has a
// share of its own. Of the empty variant they are those that the others share.
func (s Shares) Of(variant string) (n int, own bool) {
	for _, one := range s {
		if one.Variant == variant {
			n, own = n+one.Replicas, true
		}
	}
	return n, own && variant != ""
}

// In returns how many replicas are in a pool.
func (s Shares) In(pool string) int {
	n := 0
	for _, one := range s {
		if one.Pool == pool {
			n += one.Replicas
		}
	}
	return n
}

// External returns the names of the external pools that have shares, sorted.
func (s Shares) External() []string {
	var pools []string
	for _, one := range s {
		if one.Pool != "" && !slices.Contains(pools, one.Pool) {
			pools = append(pools, one.Pool)
		}
	}
	return pools
}

// String is the shares for people, as "2 of h100, 1 in pool east".
func (s Shares) String() string {
	var parts []string
	for _, one := range s {
		text := strconv.Itoa(one.Replicas)
		if one.Variant != "" {
			text += " of " + one.Variant
		}
		if one.Pool != "" {
			text += " in pool " + one.Pool
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}

// cell is what a share is of.
type cell struct{ pool, variant string }

func (s Shares) cells() map[cell]int {
	of := make(map[cell]int, len(s))
	for _, one := range s {
		of[cell{one.Pool, one.Variant}] += one.Replicas
	}
	return of
}

// shares returns the one form of the numbers of cells for m: what is of a variant that m has
// not is of any variant, or of the first where each has a share of its own.
func (m *Model) shares(of map[cell]int) Shares {
	own := map[string]bool{}
	for c := range of {
		if m.Variant(c.variant) != nil {
			own[c.variant] = true
		}
	}
	anyVariant := ""
	if len(own) > 0 && len(own) == len(m.Variants) {
		anyVariant = m.Variants[0].Name
	}
	sum := make(map[cell]int, len(of))
	for variant := range own {
		sum[cell{"", variant}] = 0
	}
	for c, n := range of {
		if !own[c.variant] {
			c.variant = anyVariant
		}
		sum[c] += n
	}
	var out Shares
	for c, n := range sum {
		if n > 0 || c.pool == "" && c.variant != "" {
			out = append(out, Share{Pool: c.pool, Variant: c.variant, Replicas: n})
		}
	}
	sortShares(out)
	return out
}

func sortShares(s Shares) {
	slices.SortFunc(s, func(a, b Share) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Variant, b.Variant)) })
}

// take lowers the numbers of cells by n together, those of the first pools and variants
// first, and returns what is left of n.
func take(of map[cell]int, n int, pools, variants []string) int {
	for _, pool := range pools {
		for _, variant := range variants {
			c := cell{pool, variant}
			less := min(of[c], n)
			if less > 0 {
				of[c] -= less
				n -= less
			}
		}
	}
	return n
}

// ownFirst are all pools of the shares, the own one first and then the last by name.
func (s Shares) ownFirst() []string {
	pools := append(s.External(), "")
	slices.Reverse(pools)
	return pools
}

// anyFirst are all variants of m in the order in which they lose replicas: what any may be,
// and then the last ones of the file.
func (m *Model) anyFirst() []string {
	variants := []string{""}
	for i := range m.Variants {
		variants = append(variants, m.Variants[len(m.Variants)-1-i].Name)
	}
	return variants
}

// With returns shares of m with n more replicas in the own pool: of the variant, or of any where
// it has no share of its own.
func (m *Model) With(s Shares, n int, variant string) Shares {
	of := s.cells()
	if _, own := s.Of(variant); !own {
		variant = ""
	}
	of[cell{"", variant}] += max(n, 0)
	return m.shares(of)
}

// withTotal returns n replicas of any variant. External pools keep what they have as far as n
// is enough; the last ones by name lose first.
func (m *Model) withTotal(n int) Shares {
	of := map[cell]int{}
	for _, pool := range m.Desired.External() {
		of[cell{pool, ""}] = min(m.Desired.In(pool), n)
		n -= of[cell{pool, ""}]
	}
	of[cell{}] = n
	return m.shares(of)
}

// withVariants returns Desired with other numbers of some variants. The other variants keep
// theirs, and what any variant may be loses the replicas that the named ones have of it. The
// replicas are those of the model that count.
func (m *Model) withVariants(numbers map[string]int, replicas []*Replica) Shares {
	next := *m
	for i := range m.Variants {
		name := m.Variants[i].Name
		n, named := numbers[name]
		if !named {
			continue
		}
		of := next.Desired.cells()
		if _, own := next.Desired.Of(name); !own {
			// They become its own where they are.
			had := next.numberOf(next.Desired, name, replicas)
			for _, pool := range append([]string{""}, next.Desired.External()...) {
				less := min(of[cell{pool, ""}], had)
				had -= less
				of[cell{pool, ""}] -= less
				of[cell{pool, name}] += less
			}
		}
		had := 0
		for c, n := range of {
			if c.variant == name {
				had += n
			}
		}
		of[cell{"", name}] += max(n-had, 0)
		take(of, had-n, next.Desired.ownFirst(), []string{name})
		next.Desired = next.shares(of)
	}
	return next.Desired
}

// withPool returns Desired with n replicas in an external pool. They come from the own pool,
// as far as it has them, and go back there.
func (m *Model) withPool(pool string, n int) Shares {
	of := m.Desired.cells()
	from, to := "", pool
	more := n - m.Desired.In(pool)
	if more < 0 {
		from, to, more = to, from, -more
	}
	for _, variant := range m.anyFirst() {
		if moved := min(of[cell{from, variant}], more); moved > 0 {
			of[cell{from, variant}] -= moved
			of[cell{to, variant}] += moved
			more -= moved
		}
	}
	of[cell{to, ""}] += more
	return m.shares(of)
}

// numberOf returns how many of the shares s of m are the variant's: those of its own or, where
// it has none, what it has of those that the variants without a share of their own divide. That
// is all where it is the only one, and else its replicas, without those that a rollout has
// added. The replicas are those of the model that count.
func (m *Model) numberOf(s Shares, variant string, replicas []*Replica) int {
	if n, own := s.Of(variant); own {
		return n
	}
	shared, _ := s.Of("")
	others := 0
	for i := range m.Variants {
		if _, own := s.Of(m.Variants[i].Name); !own && m.Variants[i].Name != variant {
			others++
		}
	}
	if others == 0 {
		return shared
	}
	running, all := 0, 0
	for _, r := range replicas {
		if _, own := s.Of(r.Name.Variant); own {
			continue
		}
		all++
		if r.Name.Variant == variant {
			running++
		}
	}
	if _, ok := m.Rollouts[variant]; ok {
		running -= max(all-shared, 0)
	}
	return min(max(running, 0), shared)
}

// maxShare is the highest number in a share. It keeps sums from overflowing.
const maxShare = 1 << 20

// shareErrors returns what is wrong with shares of m, which are in that field.
func (m *Model) shareErrors(field string, s Shares) []error {
	var errs []error
	seen := map[cell]bool{}
	for i, one := range s {
		at := func(format string, args ...any) error {
			return fmt.Errorf("%s[%d]: "+format, append([]any{field, i}, args...)...)
		}
		if one.Replicas < 0 || one.Replicas > maxShare {
			errs = append(errs, at("replicas is %d: must be 0 to %d", one.Replicas, maxShare))
		}
		if one.Variant != "" && m.Variant(one.Variant) == nil {
			errs = append(errs, at("unknown variant %q: must be one of %s", one.Variant, m.variantNames()))
		}
		if one.Pool != "" {
			errs = append(errs, checkName("pool", one.Pool))
		}
		if c := (cell{one.Pool, one.Variant}); seen[c] {
			errs = append(errs, at("duplicate share of variant %q in pool %q", one.Variant, one.Pool))
		} else {
			seen[c] = true
		}
	}
	return errs
}

// VariantsText puts numbers of variants into words, as "a100=0, h100=2".
func VariantsText(variants map[string]int) string {
	parts := make([]string, 0, len(variants))
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, variants[name]))
	}
	return strings.Join(parts, ", ")
}
