package batch_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/batch"
)

// run adds a prompt, computes it, and returns how many of its tokens were cached.
func run(t require.TestingT, s *batch.Scheduler, cfg batch.Config, id batch.ID, prompt []int) int {
	require.NoError(t, s.Add(id, len(prompt), 1, cfg.Prefix(prompt)))
	cached := -1
	for {
		for _, w := range s.Plan().Work {
			if w.Admitted {
				cached = w.Cached
			}
			if w.Emits {
				require.True(t, s.Remove(w.ID))
				return cached
			}
		}
	}
}

func TestPromptsShareTheirBeginning(t *testing.T) {
	t.Parallel()
	cfg := batch.Config{MaxSeqs: 4, MaxBatchedTokens: 8, BlockSize: 4, Blocks: 8}
	s, err := batch.New(cfg)
	require.NoError(t, err)
	prompt := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	require.Equal(t, 0, run(t, s, cfg, 1, prompt))
	require.Equal(t, 8, run(t, s, cfg, 2, prompt))
	require.Equal(t, 4, run(t, s, cfg, 3, prompt[:8]), "the last token is computed")
	require.Equal(t, 4, run(t, s, cfg, 4, []int{1, 2, 3, 4, 0, 6, 7, 8, 9}))
	require.Equal(t, 0, run(t, s, cfg, 5, []int{2, 2, 3, 4, 5, 6, 7, 8, 9}))
	require.Zero(t, s.Stats().UsedBlocks)
	s.Forget()
	require.Equal(t, 0, run(t, s, cfg, 6, prompt))
}

func TestRunningSequencesShareBlocks(t *testing.T) {
	t.Parallel()
	cfg := batch.Config{MaxSeqs: 4, MaxBatchedTokens: 100, BlockSize: 4, Blocks: 5}
	s, err := batch.New(cfg)
	require.NoError(t, err)
	prompt := make([]int, 13) // three full blocks and a token
	for id := batch.ID(1); id <= 2; id++ {
		require.NoError(t, s.Add(id, len(prompt), 2, cfg.Prefix(prompt)))
	}
	require.Len(t, s.Plan().Work, 2)
	require.Equal(t, s.Blocks(1)[:3], s.Blocks(2)[:3])
	require.NotEqual(t, s.Blocks(1)[3], s.Blocks(2)[3])
	require.Equal(t, 5, s.Stats().UsedBlocks)
	s.Remove(1)
	require.Equal(t, 4, s.Stats().UsedBlocks)
	s.Remove(2)
	require.Zero(t, s.Stats().UsedBlocks)
}

// TestOldBlocksGoFirst fills the cache with more prompts than it holds.
func TestOldBlocksGoFirst(t *testing.T) {
	t.Parallel()
	cfg := batch.Config{MaxSeqs: 4, MaxBatchedTokens: 100, BlockSize: 2, Blocks: 4}
	s, err := batch.New(cfg)
	require.NoError(t, err)
	one, two, three := []int{1, 1, 1}, []int{2, 2, 2}, []int{3, 3, 3, 3, 3}
	run(t, s, cfg, 1, one)
	run(t, s, cfg, 2, two)
	require.Equal(t, 2, run(t, s, cfg, 3, one))
	run(t, s, cfg, 4, three) // two blocks that were free without a key, and that of two
	require.Equal(t, 2, run(t, s, cfg, 5, one))
	require.Equal(t, 0, run(t, s, cfg, 6, two))
}

// TestSharedBlocksKeepTheBooks runs any prompts of a small alphabet in a small cache.
func TestSharedBlocksKeepTheBooks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := batch.Config{MaxSeqs: 3, MaxBatchedTokens: 6, BlockSize: rapid.IntRange(1, 3).Draw(t, "block"), Blocks: 12}
		s, err := batch.New(cfg)
		require.NoError(t, err)
		prompts := map[batch.ID][]int{}
		left := map[batch.ID]int{}
		var computed [][]int
		for id := batch.ID(1); id <= 40 || len(left) > 0; {
			if id <= 40 && rapid.Bool().Draw(t, "add") {
				p := rapid.SliceOfN(rapid.IntRange(0, 1), 1, 9).Draw(t, "prompt")
				n := rapid.IntRange(1, 3).Draw(t, "answer")
				require.NoError(t, s.Add(id, len(p), n, cfg.Prefix(p)))
				prompts[id], left[id] = p, n
				id++
			}
			for _, w := range slices.Clone(s.Plan().Work) {
				p := prompts[w.ID]
				if w.Admitted {
					require.Less(t, w.Cached, len(p)+3)
					require.True(t, w.Cached == 0 || slices.ContainsFunc(computed, func(c []int) bool {
						return len(c) >= w.Cached && slices.Equal(c[:w.Cached], p[:w.Cached])
					}), "%v was never computed", p[:w.Cached])
					computed = append(computed, p)
				}
				if !w.Emits {
					continue
				}
				if left[w.ID]--; left[w.ID] == 0 {
					require.True(t, s.Remove(w.ID))
					delete(left, w.ID)
				} else {
					s.Extend(w.ID)
				}
			}
			owners := map[int32][]int{}
			for other := range left {
				for i, b := range s.Blocks(other) {
					begin := prompts[other][:min((i+1)*cfg.BlockSize, len(prompts[other]))]
					if first, ok := owners[b]; ok {
						require.Equal(t, first, begin, "block %d has two contents", b)
					}
					owners[b] = begin
				}
			}
			require.Equal(t, len(owners), s.Stats().UsedBlocks)
		}
		require.Zero(t, s.Stats().UsedBlocks)
	})
}
