package archive

import (
	"context"
	"net"
	"net/http"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob/s3blob"
)

const defaultRegion = "us-east-1"

func openS3(ctx context.Context, d Destination, at location) (*bucketStore, error) {
	// Servers other than Amazon's may not know its newer checksums; the digest of what is sent is signed without them too.
	// https://docs.aws.amazon.com/sdkref/latest/guide/feature-dataintegrity.html
	checksums := aws.RequestChecksumCalculationWhenSupported
	if d.Endpoint != "" {
		checksums = aws.RequestChecksumCalculationWhenRequired
	}
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(d.awsClient()),
		config.WithRequestChecksumCalculation(checksums),
	}
	if d.Endpoint != "" {
		options = append(options, config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired))
	}
	if d.Region != "" {
		options = append(options, config.WithRegion(d.Region))
	} else if os.Getenv("AWS_REGION") == "" && os.Getenv("AWS_DEFAULT_REGION") == "" {
		options = append(options, config.WithDefaultRegion(defaultRegion))
	}
	if len(d.Credentials) > 0 {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(
			d.Credentials[CredentialS3AccessKey], d.Credentials[CredentialS3SecretKey], d.Credentials[CredentialS3SessionToken])))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		if d.Endpoint != "" {
			o.BaseEndpoint = aws.String(d.Endpoint)
			o.UsePathStyle = true
		}
	})
	bucket, err := s3blob.OpenBucket(ctx, client, at.bucket, &s3blob.Options{RequestChecksumCalculation: checksums})
	if err != nil {
		return nil, err
	}
	abort := func(ctx context.Context, key, upload string) error {
		_, err := client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &at.bucket, Key: &key, UploadId: &upload})
		return err
	}
	return &bucketStore{bucket: bucket, abort: abort}, nil
}

// awsClient is the SDK's own kind of client, to which it can add what the environment says (AWS_CA_BUNDLE).
func (d Destination) awsClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(n *net.Dialer) { n.Timeout = dialTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			own := d.transport()
			t.TLSClientConfig = own.TLSClientConfig
			t.TLSHandshakeTimeout = own.TLSHandshakeTimeout
			t.ResponseHeaderTimeout = own.ResponseHeaderTimeout
			t.MaxIdleConns, t.MaxIdleConnsPerHost = own.MaxIdleConns, own.MaxIdleConnsPerHost
		})
}
