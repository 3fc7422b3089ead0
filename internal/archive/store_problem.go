package archive

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"golang.org/x/oauth2"
	"google.golang.org/api/googleapi"
)

// Problem is what kind of failure an error of a Store is.
type Problem string

// Problems, by who has to do what about them.
const (
	// NoProblem is that of no error.
	NoProblem Problem = ""
	// Credentials are wrong, have expired or lack a permission.
	Credentials Problem = "Credentials"
	// NoBucket says that the bucket, container or directory does not exist, or is in another region.
	NoBucket Problem = "NoBucket"
	// CertificateAuthority says that the server's certificate is not trusted or is for another name.
	CertificateAuthority Problem = "CertificateAuthority"
	// Network says that the server cannot be reached, or does not answer in time.
	Network Problem = "Network"
	// Full says that a quota or volume has no room left.
	Full Problem = "Full"
	// Conflict says that other content is stored under a name already.
	Conflict Problem = "Conflict"
	// Other is none of these; the error itself has to tell.
	Other Problem = "Other"
)

// More errors of stores.
var (
	// ErrNoConditions says that a server cannot be an archive, since an upload could overwrite another's.
	ErrNoConditions = errors.New("the server does not refuse to write over an object (If-None-Match), so two clusters could destroy each other's archive; " +
		"update it, or use a server that knows conditional writes")
	errNoIdentity  = errors.New("there are no credentials and the pod has no identity; name a Secret in spec.backup.credentials")
	errNoDirectory = errors.New("the directory does not exist; create it, or mount the volume there")
)

// Codes of S3 servers, https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, and of Azure's,
// https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-error-codes.
var problemCodes = map[Problem][]string{
	Credentials: {
		"AccessDenied", "AccessForbidden", "AccountProblem", "ExpiredToken", "Forbidden", "InvalidAccessKeyId", "InvalidSecurity", "InvalidToken",
		"NotSignedUp", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired", "Unauthorized", "UnauthorizedAccess",
		"AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "InvalidAuthenticationInfo",
		"KeyBasedAuthenticationNotPermitted", "NoAuthenticationInformation", "AccountIsDisabled", "XAdminUserNotFound",
	},
	NoBucket: {
		"NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "TemporaryRedirect", "Redirect", "MovedPermanently", "BucketRegionError",
		"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled",
		"InvalidResourceName", "ResourceNotFound",
	},
	Full: {
		"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage", "StorageFull", "DiskFull", "EntityTooLarge",
	},
	Network: {"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Busy", "ServerBusy", "OperationTimedOut"},
}

// Diagnose says what kind of failure err is, so that a condition can name what has to be corrected.
func Diagnose(err error) Problem {
	switch {
	case err == nil:
		return NoProblem
	case errors.Is(err, ErrConflict) || errors.Is(err, ErrExists):
		return Conflict
	case errors.Is(err, errNoIdentity):
		return Credentials
	case errors.Is(err, errNoDirectory) || errors.Is(err, storage.ErrBucketNotExist):
		return NoBucket
	case isCertificate(err):
		return CertificateAuthority
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return Full
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return Credentials
	}
	for _, code := range codesOf(err) {
		for problem, codes := range problemCodes {
			if slices.Contains(codes, code) {
				return problem
			}
		}
	}
	if p := ofStatus(statusOf(err)); p != NoProblem {
		return p
	}
	if isIdentity(err) {
		return Credentials
	}
	if isNetwork(err) {
		return Network
	}
	return Other
}

func isCertificate(err error) bool {
	var (
		unknown  x509.UnknownAuthorityError
		invalid  x509.CertificateInvalidError
		name     x509.HostnameError
		verify   *tls.CertificateVerificationError
		alert    tls.AlertError
		noRecord tls.RecordHeaderError
	)
	return errors.As(err, &unknown) || errors.As(err, &invalid) || errors.As(err, &name) || errors.As(err, &verify) ||
		errors.As(err, &alert) || errors.As(err, &noRecord)
}

func isIdentity(err error) bool {
	var (
		token *oauth2.RetrieveError
		azure *azidentity.AuthenticationFailedError
	)
	// The chain of the AWS SDK has no type for "nothing found".
	return errors.As(err, &token) || errors.As(err, &azure) || strings.Contains(err.Error(), "get credentials: ") ||
		strings.Contains(err.Error(), "DefaultAzureCredential")
}

func isNetwork(err error) bool {
	var network net.Error
	var request *url.Error
	return errors.As(err, &network) || errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// codesOf are the codes by which the providers name an error.
func codesOf(err error) []string {
	var codes []string
	var aws smithy.APIError
	if errors.As(err, &aws) {
		codes = append(codes, aws.ErrorCode())
	}
	var azure *azcore.ResponseError
	if errors.As(err, &azure) {
		codes = append(codes, azure.ErrorCode)
	}
	return codes
}

// statusOf is the HTTP status of the answer, 0 when there was none.
func statusOf(err error) int {
	var (
		aws    *smithyhttp.ResponseError
		google *googleapi.Error
		azure  *azcore.ResponseError
	)
	switch {
	case errors.As(err, &aws):
		return aws.HTTPStatusCode()
	case errors.As(err, &google):
		return google.Code
	case errors.As(err, &azure):
		return azure.StatusCode
	}
	return 0
}

func ofStatus(status int) Problem {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return Credentials
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusNotFound:
		// An object that is not there is ErrNotFound and never gets here.
		return NoBucket
	case http.StatusInsufficientStorage:
		return Full
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return Network
	}
	return NoProblem
}

// isWriteRace says that another conditional write of the same key is under way.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
func isWriteRace(err error) bool {
	return slices.Contains(codesOf(err), "ConditionalRequestConflict") || statusOf(err) == http.StatusConflict
}

// lacksConditions says that the server does not know conditional writes.
func lacksConditions(err error) bool {
	return slices.Contains(codesOf(err), "NotImplemented") || statusOf(err) == http.StatusNotImplemented
}

// ErrConflict says that there is other content under a name already; nothing was changed.
var ErrConflict = errors.New("other content is archived under this name")
