package documents_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/documents"
)

func TestParse(t *testing.T) {
	blocks, prose := documents.Parse("before\n```sh\nremuda x # don't\nremuda y \\\n  z\n\n```\nbetween\n```console\n$ curl -d 'a\n  b'\nprinted\n```\n" +
		"```hcl file=a.hcl\nx = 1\n```\n```sh not-run: no GPU\nmake it\n```\n```\nremuda dev: printed\n```\n```\nremuda q\n```")
	require.Equal(t, []documents.Line{{1, "before"}, {8, "between"}}, prose)
	require.Len(t, blocks, 6)
	commands := func(i int) []documents.Command { return blocks[i].Commands([]string{"remuda"}) }
	require.Equal(t, []documents.Command{{3, "remuda x # don't"}, {4, "remuda y z"}}, commands(0))
	require.Equal(t, []documents.Command{{10, "curl -d 'ab'"}}, commands(1))
	require.Empty(t, commands(2))
	require.Equal(t, "a.hcl", blocks[2].File())
	require.Equal(t, "no GPU", blocks[3].NotRun())
	require.Equal(t, []documents.Command{{18, "make it"}}, commands(3))
	require.Empty(t, blocks[0].NotRun())
	require.Empty(t, commands(4))
	require.Equal(t, []documents.Command{{24, "remuda q"}}, commands(5))
}
