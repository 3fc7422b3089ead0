package cluster

import (
	"context"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/image"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// importPause loads the pause image, which every pod of the node needs.
func (c *Cluster) importPause(ctx context.Context, p artifact.Programs, n layout.Node) error {
	tar, err := artifact.Cached(ctx, func(string, ...any) {}, "images/pause-1.tar", func(tmp string) error {
		return image.Pause(tmp, p.Pause)
	})
	if err != nil {
		return err
	}
	return image.Load(ctx, tar, []layout.Node{n})
}
